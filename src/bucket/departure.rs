//! Departure: who leaves, what becomes of it on its way to stdout, and what grows too old.

use super::*;

impl Bucket {
    /// Lets the next item leave, and with it those behind it that are due by `now` (real time), if nothing else
    /// happens before.
    pub(super) fn depart(&mut self, now: u64) {
        let id = if self.keyed() { self.departures.first().map_or(0, |first| first.2) } else { 0 };
        let due = self.due(id);
        let reached = self.bucket_time(self.at);
        if self.sharing.is_some() && due.is_none_or(|due| self.config.pacer.ceil_ns(due) > reached) {
            // What was reserved is void by now.
            return self.refresh(id);
        }
        let due = due.unwrap_or_default();
        let pacer = &self.config.pacer;
        let lane = &mut self.lanes[id as usize];
        let Some(mut head) = lane.line.waiting.pop_front() else {
            return;
        };
        let until = if self.config.max_keys.is_some() || !self.mouth.is_empty() {
            due
        } else {
            let oldest = self.config.max_age.map_or(NEVER, |age| head.run.arrival.saturating_add(age).max(self.at));
            let real = now.min(oldest).saturating_sub(self.accounts.forgiven);
            let plug = self.leaving.front().map_or(due, |front| front.due);
            let plug = match keeps_real_time(pacer, self.config.replays) && self.sharing.is_none() {
                true => NEVER,
                false => pacer.ceil_ns(plug).saturating_add(self.config.catch_up),
            };
            pacer.ticks(real.min(plug))
        };
        let mut spent = NEVER;
        let departure = match &mut self.sharing {
            None => pacer.leave(&mut lane.state, due, head.run.weight, head.run.count, until),
            Some(sharing) => {
                let units = pacer::units(sharing.unit, head.run.weight);
                // What waited for nothing but its slot leaves slot by slot, what comes after it all at once.
                let on_time = pacer.ticks(sharing.ledger.slot(&lane.key, units, self.now).unwrap_or(0)) == due;
                let (until, step) = if on_time { (until, pacer.step(head.run.weight)) } else { (due, 0) };
                let count = sharing.ledger.ready(&lane.key, units, pacer.floor_ns(until)).min(head.run.count);
                spent = sharing.ledger.spent(&lane.key, units, self.now);
                sharing.ledger.take(&lane.key, units.saturating_mul(count));
                Departure { count, due, step }
            }
        };
        lane.last = pacer::units(self.config.capacity_unit, head.run.weight);
        if departure.count < head.run.count {
            let run = head.run.split_to(departure.count, &self.config.layout);
            let rest = std::mem::replace(&mut head.run, run);
            lane.line.waiting.push_front(Waiting { run: rest, ..head.clone() });
        }
        if self.config.trace {
            let fate = Fate::Emitted(due, departure.step);
            self.outcomes.push(Outcome { number: head.run.number, count: departure.count, fate });
        }
        let last = due.saturating_add(departure.step.saturating_mul(u128::from(departure.count - 1)));
        self.changed = last;
        if let Some(next) = lane.line.waiting.front_mut() {
            // First in, first out, also where the next one is cheaper.
            next.admitted = next.admitted.max(last);
        }
        self.account_left(id, &head.run, head.part);
        let streams = head.part == Part::First;
        self.let_go(id, head.run, head.part, due, departure.step, spent);
        if streams {
            self.open_leaving(id, due);
        }
        self.refresh(id);
        self.place_unterminated();
    }

    /// The first part of an item has left: what has been read of it follows, and what comes later, too.
    pub(super) fn open_leaving(&mut self, id: u32, due: Ticks) {
        while let Some(piece) = self.pop_piece(id) {
            let last = piece.part == Part::Last;
            self.account_left(id, &piece.run, piece.part);
            self.let_go(id, piece.run, piece.part, due, 0, NEVER);
            if last {
                return;
            }
        }
        self.open = Some(Open::Leaving(id, due));
    }

    pub(super) fn let_go(&mut self, id: u32, run: Run, part: Part, due: Ticks, step: Ticks, spent: u64) {
        let lane = &mut self.lanes[id as usize];
        if matches!(part, Part::Middle | Part::Last) {
            match &self.sharing {
                None => self.config.pacer.charge(&mut lane.state, run.weight),
                Some(sharing) if sharing.unit == Unit::Items => {}
                Some(sharing) => lane.line.owed = lane.line.owed.saturating_add(pacer::units(sharing.unit, run.weight)),
            }
        }
        lane.line.leaving += 1;
        self.leaving_bytes += run.slice.len() as u64;
        self.leaving.push_back(Leaving { run, part, lane: id, due, step, spent, written: 0 });
        self.will_ask(id);
    }

    /// Appends to `slices` what has left and is not written, oldest first, up to `most` slices. While they are being
    /// written nothing of it expires.
    pub fn leaving(&mut self, slices: &mut Vec<Slice>, most: usize) {
        let rest = |leaving: &Leaving| leaving.run.slice.range(leaving.written, leaving.run.slice.len());
        slices.extend(self.leaving.iter().take(most).map(rest));
        self.writing = !slices.is_empty();
    }

    /// Appends to `slices` only the next item that has left and is not written.
    pub fn leaving_item(&mut self, slices: &mut Vec<Slice>) {
        if let Some(front) = self.leaving.front() {
            let end = match front.part {
                Part::Whole => self.config.layout.nth_end_in(&front.run.slice, 1),
                _ => front.run.slice.len(),
            };
            slices.push(front.run.slice.range(front.written, end));
            self.in_step = true;
        }
        self.writing = !slices.is_empty();
    }

    /// `bytes` of what had left are written, at `at` (real time). For each stretch of items whose write has ended,
    /// `late` is told how many they are, how late the first was written, and by how much less each further one was.
    pub fn wrote(&mut self, mut bytes: usize, at: u64, mut late: impl FnMut(u64, u64, u64)) {
        self.writing = false;
        self.in_step &= bytes == 0;
        self.accounts.bytes_emitted += bytes as u64;
        if self.config.count_bytes {
            self.accounts.emitted += bytes as u64;
        }
        self.leaving_bytes -= bytes as u64;
        if bytes > 0 {
            self.accounts.emitted_at = at;
        }
        while let Some(front) = self.leaving.front_mut() {
            let rest = front.run.slice.len() - front.written;
            let whole = bytes >= rest;
            let ended = if whole {
                bytes -= rest;
                front.run.count
            } else if bytes == 0 {
                return;
            } else {
                front.written += bytes;
                bytes = 0;
                match front.part {
                    // After a change of rate chunks may be smaller than when these left.
                    Part::Whole => {
                        let ended = self.config.layout.count_in(&front.run.slice, front.written);
                        ended.min(front.run.count - 1)
                    }
                    _ => 0,
                }
            };
            let (part, lane, due, step, weight) = (front.part, front.lane, front.due, front.step, front.run.weight);
            let spent = front.spent;
            if !whole && ended > 0 {
                let head = front.run.split_to(ended, &self.config.layout);
                front.written -= head.slice.len();
                front.due = due.saturating_add(step.saturating_mul(u128::from(ended)));
            }
            if ended > 0 || part == Part::Last {
                let pacer = &self.config.pacer;
                let first = at.saturating_sub(pacer.ceil_ns(due)).saturating_sub(self.accounts.forgiven);
                late(ended.max(1), first, pacer.ceil_ns(step));
                self.forgive(due, at);
                self.reserve_anew(lane, spent, weight, ended, at);
                self.accounts.emitted += match part {
                    _ if self.config.count_bytes => 0,
                    Part::Whole => ended,
                    Part::Last => 1,
                    Part::First | Part::Middle => 0,
                };
            }
            self.accounts.cost_emitted += weight.cost.saturating_mul(ended.max(u64::from(part == Part::First)));
            // What streams is charged piece by piece, but counts as one item.
            let counted = if part == Part::Whole { ended } else { 1 };
            let whole_or_ended = whole || (part == Part::Whole && ended > 0);
            if whole_or_ended {
                self.config.pacer.ended(&mut self.lanes[lane as usize].state, due, at, weight, counted);
            }
            if whole {
                self.leaving.pop_front();
                self.lanes[lane as usize].line.leaving -= 1;
            }
            if whole_or_ended && (self.keyed() || self.config.pacer.keeps_real_time()) {
                self.refresh(lane);
            }
            if !whole {
                return;
            }
        }
    }

    /// Forgives what the write that ended at `at` was late by beyond the catch-up.
    pub(super) fn forgive(&mut self, due: Ticks, at: u64) {
        if self.sharing.is_some() {
            return;
        }
        let plug = self.plug_of(due);
        self.accounts.forgiven += at.saturating_sub(self.accounts.forgiven).saturating_sub(plug);
    }

    /// Says whether stdout takes nothing at the moment. Without a rate, what has left and could not be written then
    /// waits again, unless its writing has begun.
    pub fn blocked(&mut self, blocked: bool) {
        self.writing = false;
        self.blocked = blocked;
        if !blocked || !self.config.pacer.is_unlimited() || self.config.overflow == Overflow::Block {
            return;
        }
        while let Some(mut back) = self.leaving.pop_back() {
            let (id, due) = (back.lane, back.due);
            let begun = back.written > 0 || (self.in_step && self.leaving.is_empty());
            if back.part != Part::Whole || (begun && back.run.count == 1) {
                self.leaving.push_back(back);
                return;
            }
            let mut run = back.run.clone();
            if begun {
                back.run = run.split_to(1, &self.config.layout);
                self.leaving.push_back(back);
            } else {
                self.lanes[id as usize].line.leaving -= 1;
            }
            let bytes = run.slice.len() as u64;
            self.leaving_bytes -= bytes;
            self.waiting_bytes += bytes;
            self.waiting_items += run.count;
            let units = pacer::units(self.config.capacity_unit, run.weight).saturating_mul(run.count);
            let lane = &mut self.lanes[id as usize];
            lane.line.units = lane.line.units.saturating_add(units);
            lane.line.waiting.push_front(Waiting { run, part: Part::Whole, admitted: due });
            self.refresh(id);
            if begun {
                return;
            }
        }
    }

    /// The first of what is leaving whose writing has not begun.
    pub(super) fn not_begun(&self) -> Option<usize> {
        if self.writing {
            return None;
        }
        let begun = |leaving: &Leaving| (leaving.written > 0 || self.in_step) && leaving.run.count == 1;
        let from = usize::from(self.leaving.front().is_some_and(begun));
        self.leaving.get(from).filter(|leaving| leaving.part == Part::Whole).map(|_| from)
    }

    /// Takes away what has waited for longer than the maximal age at this instant.
    pub(super) fn expire(&mut self) {
        let Some(age) = self.config.max_age else { return };
        let at = self.at;
        let old = |arrival: u64| arrival.saturating_add(age) < at;
        while let Some(index) = self.not_begun()
            && old(self.leaving[index].run.arrival)
        {
            let Some(mut gone) = self.leaving.remove(index) else {
                break;
            };
            let lane = gone.lane;
            if gone.written > 0 || (self.in_step && index == 0) {
                let begun = gone.run.split_to(1, &self.config.layout);
                let rest = std::mem::replace(&mut gone.run, begun);
                self.leaving.insert(index, gone.clone());
                gone.run = rest;
            } else {
                self.lanes[lane as usize].line.leaving -= 1;
            }
            self.leaving_bytes -= gone.run.slice.len() as u64;
            self.config.pacer.withdraw(&mut self.lanes[lane as usize].state, gone.run.weight, gone.run.count);
            self.account_gone(gone.run, Part::Whole, Fate::Expired);
            self.refresh(lane);
        }
        loop {
            let id = if self.keyed() { self.oldest.first().map(|oldest| oldest.2) } else { Some(0) };
            let head = id.and_then(|id| Some((id, self.lanes[id as usize].line.waiting.front()?)));
            match head.filter(|(_, head)| old(head.run.arrival)).map(|(id, head)| (id, head.run.count)) {
                Some((id, count)) => self.remove_oldest(id, count, Fate::Expired),
                None => break,
            }
        }
        if self.offered.is_some()
            && self.mouth.front().is_some_and(|front| old(front.run.arrival))
            && let Some(front) = self.take_front_of_mouth()
        {
            self.decided = self.config.pacer.ticks(self.bucket_time(at));
            self.drop_arrival(front, Fate::Expired);
            self.front_of_mouth();
        }
    }
}
