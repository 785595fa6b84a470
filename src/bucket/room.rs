//! Admission: whether there is room, and from when on.

use super::*;

impl Bucket {
    /// Whether there is room for the front of the mouth at `now` (bucket time), and if not, when.
    pub(super) fn room(&self, front: &Arrival, now: u64) -> Room {
        let run = &front.run;
        let mut rested = 0;
        let lane = match self.find_lane(&front.key) {
            Some(id) => &self.lanes[id as usize],
            None if self.table.len() < self.config.max_keys.unwrap_or(usize::MAX) => &self.blank,
            None => match self.idle.first() {
                Some((at, id)) if *at <= now => {
                    rested = self.config.pacer.fresh_at(&self.lanes[*id as usize].state).unwrap_or(0);
                    &self.blank
                }
                Some((at, _)) => return Room::At(*at),
                None => return Room::Later,
            },
        };
        let free = self.config.max_held.saturating_sub(self.waiting_bytes + self.leaving_bytes);
        let held = run.slice.len() as u64;
        match self.room_in(lane, lane.line.units, run.weight, now) {
            // Something always gets in, be it ever so large.
            Room::Now(count, _) if held > free && (count > 1 || self.waiting_bytes + self.leaving_bytes > 0) => {
                match self.config.layout.count_in(&run.slice, free.min(held) as usize).min(count) {
                    0 => Room::Later,
                    fitting => Room::Now(fitting, self.config.pacer.ticks(now)),
                }
            }
            Room::Now(count, since) => Room::Now(count, since.max(rested)),
            room => room,
        }
    }

    /// Room in a lane in which `waiting` units wait.
    pub(super) fn room_in(&self, lane: &Lane, waiting: u64, weight: Weight, now: u64) -> Room {
        let pacer = &self.config.pacer;
        let units = pacer::units(self.config.capacity_unit, weight);
        if pacer.in_windows() {
            return self.room_beside_window(lane, waiting, units, weight, now);
        }
        let capacity = self.config.capacity;
        if pacer.is_unlimited() {
            let free = capacity.saturating_sub(waiting);
            return match free.checked_div(units) {
                // What finds the hole open leaves at once and never waits.
                _ if waiting == 0 && !self.blocked => Room::Now(u64::MAX, 0),
                None => Room::Now(u64::MAX, 0),
                Some(0) if waiting == 0 => Room::Now(1, 0),
                Some(0) => Room::Later,
                Some(count) => Room::Now(count, 0),
            };
        }
        let ticks = pacer.ticks(now);
        // The capacity in units of the rate, if both count the same, and how many of these are one of the capacity.
        let limit = |rest: &Rest| {
            let scale = per_unit(rest.unit, self.config.capacity_unit)?;
            Some((scale, u128::from(capacity) + u128::from((rest.burst - 1) / scale)))
        };
        let dear = pacer
            .rests(&lane.state, weight)
            .any(|rest| u128::from(units) > limit(&rest).map_or(u128::from(capacity), |limit| limit.1));
        // What leaves while it warms up has more to pay than what waits, so each is decided on by itself.
        let (mut count, mut since) = (if pacer.warms_up() { 1 } else { u64::MAX }, 0);
        for rest in pacer.rests(&lane.state, weight) {
            let own = match limit(&rest) {
                _ if dear && waiting > 0 => return Room::Later,
                // What is dearer than the capacity needs level 0, and enters alone.
                Some(_) if dear => (1, rest.paid),
                None if dear => (1, rest.slot),
                Some((scale, capacity)) => {
                    let unit = rest.period.saturating_mul(u128::from(scale));
                    let step = unit.saturating_mul(u128::from(units));
                    // Level and cost may come to the capacity: what left last may still have so much to pay.
                    let free = capacity.saturating_sub(u128::from(waiting)).saturating_mul(unit);
                    let Some(unpaid) = free.checked_sub(step) else { return Room::Later };
                    let since = rest.paid.saturating_sub(unpaid);
                    let further = (free.saturating_sub(rest.paid.saturating_sub(ticks))).checked_div(step);
                    (further.map_or(u64::MAX, |count| u64::try_from(count).unwrap_or(u64::MAX)), since)
                }
                None => {
                    // The last item counts whole until its slot ends.
                    let free = capacity.saturating_sub(waiting);
                    let ended = rest.slot <= ticks;
                    let beside = free.saturating_sub(if ended { 0 } else { lane.last });
                    match (beside.checked_div(units), free.checked_div(units)) {
                        (Some(0), Some(0)) => return Room::Later,
                        (Some(0), _) => (1, rest.slot),
                        (count, _) => (count.unwrap_or(u64::MAX), if ended { rest.slot.min(ticks) } else { 0 }),
                    }
                }
            };
            count = count.min(own.0);
            since = since.max(own.1);
        }
        let at = pacer.ceil_ns(since);
        if at <= now { Room::Now(count.max(1), since) } else { Room::At(at) }
    }

    /// Under a window, what may leave at once gets in, and capacity - 1 may wait.
    pub(super) fn room_beside_window(&self, lane: &Lane, waiting: u64, units: u64, weight: Weight, now: u64) -> Room {
        let ticks = self.config.pacer.ticks(now);
        let free = (self.config.capacity - 1).saturating_sub(waiting);
        let may_wait = free.checked_div(units).unwrap_or(u64::MAX);
        let due = if lane.line.waiting.is_empty() { self.config.pacer.due(&lane.state, ticks, weight) } else { None };
        match due.map(|due| self.config.pacer.ceil_ns(due)) {
            // Windows begin and end at whole nanoseconds.
            Some(due) if due <= now => Room::Now(1, ticks),
            _ if may_wait > 0 => Room::Now(may_wait, ticks),
            Some(due) => Room::At(due),
            None => Room::Later,
        }
    }

    /// Admits items at `at` (bucket time).
    pub(super) fn admit(&mut self, id: u32, arrival: Arrival, at: Ticks) {
        let run = arrival.run;
        let units = pacer::units(self.config.capacity_unit, run.weight);
        if arrival.part == Part::First {
            self.open = Some(Open::Waiting(id));
        }
        if self.keyed() && arrival.part == Part::Whole && !self.config.layout.ends(&run.slice) {
            self.unterminated = Some(run.number);
        }
        self.waiting_items += run.count;
        self.waiting_bytes += run.slice.len() as u64;
        let lane = &mut self.lanes[id as usize];
        lane.line.units = lane.line.units.saturating_add(units.saturating_mul(run.count));
        if lane.fresh_at != BUSY {
            self.idle.remove(&(lane.fresh_at, id));
            lane.fresh_at = BUSY;
        }
        let alone = lane.line.waiting.is_empty();
        lane.line.waiting.push_back(Waiting { run, part: arrival.part, admitted: at });
        if alone {
            self.refresh(id);
        } else {
            self.will_ask(id);
        }
        if self.keyed() {
            self.note_level(id);
        }
    }
}
