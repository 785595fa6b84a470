//! The accounts, and what is left at the end.

use super::*;

impl Bucket {
    /// What `run` counts in the accounts; an item in pieces counts with its first.
    pub(super) fn counts(&self, run: &Run, part: Part) -> u64 {
        match part {
            Part::Whole if self.config.count_bytes => run.slice.len() as u64,
            Part::Whole | Part::First => run.count,
            Part::Middle | Part::Last => 0,
        }
    }

    /// `run` does not wait any more.
    pub(super) fn account_left(&mut self, id: u32, run: &Run, part: Part) {
        let units = pacer::units(self.config.capacity_unit, run.weight);
        let count = if matches!(part, Part::Middle | Part::Last) && self.config.capacity_unit != Unit::Items {
            1
        } else {
            run.count
        };
        let lane = &mut self.lanes[id as usize];
        lane.line.units = lane.line.units.saturating_sub(units.saturating_mul(count));
        self.waiting_items -= run.count;
        self.waiting_bytes -= run.slice.len() as u64;
    }

    /// `run` will never be written.
    pub(super) fn account_gone(&mut self, run: Run, part: Part, fate: Fate) {
        let count = self.counts(&run, part);
        match fate {
            Fate::Expired => self.accounts.expired += count,
            _ => self.accounts.dropped += count,
        }
        if self.config.trace && run.count > 0 {
            self.outcomes.push(Outcome { number: run.number, count: run.count, fate });
        }
        if self.keep_cast_off {
            self.cast_off.push(run.slice);
        }
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        if self.noticed.insert(notice) {
            self.notices.push(notice);
        }
    }

    /// The level of a lane at `now`, in thousandths of a unit of the capacity.
    pub(super) fn level(&self, lane: &Lane, now: Ticks) -> u64 {
        let rest = self.config.pacer.rests(&lane.state, ONE).map(|rest| {
            let unpaid = rest.paid.saturating_sub(now);
            match per_unit(rest.unit, self.config.capacity_unit) {
                _ if unpaid == 0 => 0,
                Some(scale) => pacer::div(unpaid.saturating_mul(1000), rest.period.saturating_mul(u128::from(scale))),
                None => u128::from(lane.last) * 1000,
            }
        });
        let rest = u64::try_from(rest.max().unwrap_or(0)).unwrap_or(u64::MAX);
        lane.line.units.saturating_mul(1000).saturating_add(rest)
    }

    /// With block the capacity is what counts as the level, whatever the reader has read ahead.
    pub(super) fn note_level(&mut self, id: u32) {
        let now = self.config.pacer.ticks(self.bucket_time(self.at));
        let lane = &self.lanes[id as usize];
        let mut level = self.level(lane, now);
        let paid = self.config.pacer.rests(&lane.state, ONE).map(|rest| rest.paid).max().unwrap_or(0);
        self.accounts.level_waiting = lane.line.units.saturating_mul(1000);
        self.accounts.level_at = self.at;
        self.accounts.level_until = self.config.pacer.ceil_ns(paid).saturating_add(self.accounts.forgiven);
        if self.config.overflow == Overflow::Block {
            level = level.min(self.config.capacity.saturating_mul(1000));
        }
        self.accounts.level = level;
        self.accounts.level_max = self.accounts.level_max.max(level);
    }
    /// An item has begun when the run ends: `bytes` of it have been read, and it is held.
    pub fn read_rest(&mut self, bytes: u64) {
        self.accounts.read += match (self.open, self.config.count_bytes) {
            // It counts already.
            (Some(_), _) => 0,
            (None, true) => bytes,
            (None, false) => 1,
        };
        self.accounts.bytes_read += bytes;
    }

    /// What has been read and not written, in the order in which it was read, the rest of a half-written item first.
    pub fn leftover(&self) -> Vec<Slice> {
        let rest = |leaving: &Leaving| leaving.run.slice.range(leaving.written, leaving.run.slice.len());
        let mut leftover: Vec<Slice> = self.leaving.iter().map(rest).collect();
        let mut waiting: Vec<&Run> =
            self.lanes.iter().flat_map(|lane| &lane.line.waiting).map(|waiting| &waiting.run).collect();
        if self.keyed() {
            waiting.sort_by_key(|run| run.number);
        }
        leftover.extend(waiting.into_iter().map(|run| run.slice.clone()));
        leftover.extend(self.mouth.iter().map(|arrival| arrival.run.slice.clone()));
        leftover
    }
}
