//! The mouth: what has arrived and is not decided on.

use super::*;

impl Bucket {
    /// Items arrive at `now` (real time).
    pub fn arrive(&mut self, now: u64, arrival: Arrival) {
        if !self.config.count_bytes {
            return self.arrive_as_cut(now, arrival);
        }
        for run in self.recut(arrival.run) {
            self.arrive_as_cut(now, Arrival { run, key: arrival.key.clone(), ..arrival });
        }
    }

    pub(super) fn arrive_as_cut(&mut self, now: u64, arrival: Arrival) {
        self.advance(now);
        let len = arrival.run.slice.len() as u64;
        self.accounts.bytes_read += len;
        self.accounts.read += self.counts(&arrival.run, arrival.part);
        match (arrival.part, self.open) {
            (Part::Middle | Part::Last, Some(open)) => self.more(open, arrival),
            _ => {
                if arrival.part == Part::First {
                    self.open = Some(Open::Mouth);
                }
                if self.holds_nothing_back() {
                    let admitted = self.config.pacer.ticks(self.bucket_time(now));
                    self.admit(0, arrival, admitted);
                } else {
                    self.mouth_bytes += len;
                    self.mouth.push_back(arrival);
                    self.front_of_mouth();
                }
            }
        }
        self.advance(now);
        if !self.keyed() {
            self.note_level(0);
        }
    }

    /// Where nobody else can be delayed by it, when block lets an item in changes nothing that can be seen: it leaves
    /// when its turn comes. So there nothing stands at the mouth, and `may_read` alone keeps the reader back.
    pub(super) fn holds_nothing_back(&self) -> bool {
        self.config.overflow == Overflow::Block && !self.keyed() && !self.config.replays
    }

    /// How many bytes the reader may read now; 0: it has to wait. Never more than `most`.
    pub fn may_read(&self, most: usize) -> usize {
        let held = self.held_bytes();
        if self.overflowed || (held >= self.config.max_held && self.config.overflow == Overflow::Block) {
            return 0;
        }
        // A leaker that is writing gets time to; a stdout that takes nothing is waited for only where the policy says so.
        if !self.blocked && (self.leaving_bytes >= LEAVING_BYTES || self.leaving.len() >= LEAVING_RUNS) {
            return 0;
        }
        let room = match (self.open, self.config.overflow) {
            // While an item streams the reader waits for stdout under every policy.
            (Some(Open::Leaving(..)), _) => self.leaving_bytes < LEAVING_BYTES,
            (Some(Open::Gone(_)), _) => true,
            (Some(_), _) => true,
            (None, _) if self.holds_nothing_back() => return self.may_read_ahead(most),
            // A replay reads ahead of its own time, the others as soon as all is decided.
            (None, _) => self.mouth.is_empty() || (self.mouth_bytes < most as u64 && self.offered.is_none()),
        };
        if room { most } else { 0 }
    }

    pub(super) fn may_read_ahead(&self, most: usize) -> usize {
        if self.config.pacer.is_unlimited() {
            return if self.held_bytes() < LEAVING_BYTES { most } else { 0 };
        }
        let lane = &self.lanes[0];
        let now = self.config.pacer.ticks(self.bucket_time(self.at));
        let level = self.level(lane, now) / 1000;
        if self.config.count_bytes {
            // Bytes can be cut anywhere, so no more is read than there is room for.
            let free = self.config.capacity.saturating_sub(self.held_bytes());
            let enough = (self.config.capacity / 4).clamp(1, most as u64);
            return if free >= enough { (free as usize).min(most) } else { 0 };
        }
        let free = self.config.capacity.saturating_sub(level);
        let ahead = self.config.pacer.rests(&lane.state, ONE).map(|rest| {
            let units = match rest.unit {
                Unit::Items => self.waiting_items,
                Unit::Bytes => self.waiting_bytes,
                Unit::Bits => self.waiting_bytes.saturating_mul(8),
                Unit::Cost => self.waiting_items,
            };
            rest.period.saturating_mul(u128::from(units))
        });
        let short = ahead.max().unwrap_or(0) < self.config.pacer.ticks(AHEAD_NS);
        if free > 0 || short { most } else { 0 }
    }

    /// More of the item that is being read.
    pub(super) fn more(&mut self, open: Open, arrival: Arrival) {
        let len = arrival.run.slice.len() as u64;
        let full = self.held_bytes() + len > self.config.max_held && self.config.overflow != Overflow::Block;
        let last = arrival.part == Part::Last;
        match open {
            Open::Mouth => {
                self.mouth_bytes += len;
                self.mouth.push_back(arrival);
            }
            Open::Waiting(lane) => {
                let units = pacer::units(self.config.capacity_unit, arrival.run.weight);
                let charged = if self.config.capacity_unit == Unit::Items { 0 } else { units };
                self.waiting_bytes += len;
                let lane = &mut self.lanes[lane as usize];
                lane.line.units = lane.line.units.saturating_add(charged);
                lane.line.waiting.push_back(Waiting { run: arrival.run, part: arrival.part, admitted: 0 });
            }
            Open::Leaving(lane, due) => self.let_go(lane, arrival.run, arrival.part, due, 0, NEVER),
            Open::Gone(fate) => self.account_gone(arrival.run, arrival.part, fate),
        }
        if full {
            self.give_up_open(open, last);
        }
        if last {
            self.open = None;
        }
    }

    /// An item that fills all memory before its turn comes is overflow.
    pub(super) fn give_up_open(&mut self, open: Open, last: bool) {
        if matches!(open, Open::Leaving(..) | Open::Gone(_)) {
            return;
        }
        self.notice(Notice::MemoryFull);
        if self.config.overflow == Overflow::Fail {
            self.overflowed = true;
            return;
        }
        if let Open::Waiting(id) = open {
            let lane = &mut self.lanes[id as usize];
            let first = lane.line.waiting.iter().rposition(|waiting| waiting.part == Part::First).unwrap_or(0);
            for piece in lane.line.waiting.split_off(first) {
                self.account_left(id, &piece.run, piece.part);
                self.account_gone(piece.run, piece.part, Fate::Dropped);
            }
            self.refresh(id);
        } else if let Some(front) = self.take_front_of_mouth() {
            self.drop_arrival(front, Fate::Dropped);
        }
        self.open = (!last).then_some(Open::Gone(Fate::Dropped));
    }

    pub(super) fn front_of_mouth(&mut self) {
        if self.offered.is_none() && self.mouth.front().is_some_and(|front| front.recorded.is_none()) {
            self.offered = Some(self.at);
        }
    }

    /// The recorded time of the front of the mouth has come.
    pub(super) fn offer(&mut self) {
        let at = self.at;
        self.offered = Some(at);
        if let Some(front) = self.mouth.front_mut() {
            // It may have come while another one was still to be decided on.
            front.run.arrival = front.recorded.unwrap_or(at).saturating_add(self.accounts.forgiven).min(at);
        }
    }

    pub(super) fn take_front_of_mouth(&mut self) -> Option<Arrival> {
        let front = self.mouth.pop_front()?;
        self.mouth_bytes -= front.run.slice.len() as u64;
        self.offered = None;
        Some(front)
    }

    /// The pieces at the mouth that belong to the item of which `part` was taken away.
    pub(super) fn take_pieces(&mut self, part: Part) -> Vec<Arrival> {
        let belongs = |arrival: &&Arrival| matches!(arrival.part, Part::Middle | Part::Last);
        let count = if part == Part::First { self.mouth.iter().take_while(belongs).count() } else { 0 };
        let pieces: Vec<Arrival> = self.mouth.drain(..count).collect();
        self.mouth_bytes -= pieces.iter().map(|piece| piece.run.slice.len() as u64).sum::<u64>();
        pieces
    }

    /// Cuts `count` items off the front of the mouth, or takes all of it.
    pub(super) fn cut_front(&mut self, mut front: Arrival, count: u64) -> Arrival {
        if count >= front.run.count {
            return front;
        }
        let run = front.run.split_to(count, &self.config.layout);
        let head = Arrival { run, part: front.part, key: front.key.clone(), recorded: front.recorded };
        self.mouth_bytes += front.run.slice.len() as u64;
        self.mouth.push_front(front);
        head
    }

    /// Decides on the front of the mouth, which has been offered.
    pub(super) fn decide(&mut self) {
        let now = self.bucket_time(self.at);
        let Some(front) = self.mouth.front() else { return };
        let room = self.room(front, now);
        let (offered, waits) = (self.offered, self.config.timeout.is_some());
        // Recorded and real arrivals are whole nanoseconds; only a decision may lie between two.
        let arrived =
            front.recorded.unwrap_or_else(|| front.run.arrival.saturating_sub(self.accounts.forgiven)).min(now);
        let offer = self.decided.max(self.config.pacer.ticks(arrived));
        if let (Room::Now(count, since), Some(lane)) = (room, self.lane_for(now)) {
            let Some(front) = self.take_front_of_mouth() else { return };
            let head = self.cut_front(front, count);
            let now = offer.max(since).max(self.changed);
            self.decided = now;
            let pieces = self.take_pieces(head.part);
            self.admit(lane, head, now);
            for piece in pieces {
                if let Some(open) = self.open {
                    self.more(open, piece);
                }
            }
        } else {
            match self.config.overflow {
                Overflow::Block => return,
                Overflow::Fail => {
                    self.overflowed = true;
                    return;
                }
                Overflow::DropOldest => {
                    if self.evict(now) {
                        self.offered = offered;
                        return;
                    }
                    self.notice(Notice::NothingToEvict);
                }
                Overflow::DropNewest => {}
            }
            let Some(front) = self.take_front_of_mouth() else {
                return;
            };
            self.decided = self.config.pacer.ticks(now);
            // Where there is no room for one of a run there is none for the next; but each waits for it in its turn.
            let head = self.cut_front(front, if waits { 1 } else { u64::MAX });
            self.drop_arrival(head, Fate::Dropped);
        }
        self.front_of_mouth();
    }

    pub(super) fn drop_arrival(&mut self, head: Arrival, fate: Fate) {
        let pieces = self.take_pieces(head.part);
        if head.part == Part::First && pieces.last().is_none_or(|piece| piece.part != Part::Last) {
            self.open = Some(Open::Gone(fate));
        }
        if let Some(key) = &head.key {
            let hash = self.hash(key);
            lose(&mut self.lost, hash, key, head.run.count);
        }
        self.account_gone(head.run, head.part, fate);
        for piece in pieces {
            self.account_gone(piece.run, piece.part, fate);
        }
    }

    /// Evicts the oldest that waits for the front of the mouth. False if that would not help.
    pub(super) fn evict(&mut self, now: u64) -> bool {
        let Some(front) = self.mouth.front() else { return false };
        let Some(id) = self.find_lane(&front.key) else {
            return false;
        };
        let lane = &self.lanes[id as usize];
        let memory = self.waiting_bytes + self.leaving_bytes + front.run.weight.len > self.config.max_held;
        // A run holds more than one item only where all are alike. Then each that arrives costs one that waits, and
        // those of the run that would be evicted by later ones need not get in first.
        let needed = if memory { 1 } else { front.run.count };
        // No more are counted than are needed, or an arrival would cost the more the more wait.
        let mut waiting = 0;
        for run in lane.line.waiting.iter().map(|waiting| &waiting.run) {
            waiting += run.count;
            if waiting >= needed {
                break;
            }
        }
        if waiting == 0 || !(memory || matches!(self.room_in(lane, 0, front.run.weight, now), Room::Now(..))) {
            return false;
        }
        if needed > waiting
            && let Some(front) = self.take_front_of_mouth()
        {
            let passing = self.cut_front(front, needed - waiting);
            self.drop_arrival(passing, Fate::Dropped);
        }
        self.remove_oldest(id, needed, Fate::Dropped);
        true
    }

    /// Takes the `count` oldest items of a lane away.
    pub(super) fn remove_oldest(&mut self, id: u32, mut count: u64, fate: Fate) {
        while count > 0
            && let Some(mut head) = self.lanes[id as usize].line.waiting.pop_front()
        {
            if head.run.count > count {
                let run = head.run.split_to(count, &self.config.layout);
                let rest = std::mem::replace(&mut head.run, run);
                self.lanes[id as usize].line.waiting.push_front(Waiting { run: rest, ..head.clone() });
            }
            count -= head.run.count;
            let streams = head.part == Part::First;
            if self.keyed() {
                let key = &self.lanes[id as usize].key;
                let hash = self.hash(key);
                lose(&mut self.lost, hash, key, head.run.count);
            }
            self.account_left(id, &head.run, head.part);
            self.account_gone(head.run, head.part, fate);
            if streams {
                self.remove_pieces(id, fate);
            }
        }
        // Whoever comes to the head by that may be due already, but could not leave before.
        let now = self.config.pacer.ticks(self.bucket_time(self.at));
        self.changed = now;
        if let Some(head) = self.lanes[id as usize].line.waiting.front_mut() {
            head.admitted = head.admitted.max(now);
        }
        self.refresh(id);
        self.place_unterminated();
    }

    /// Takes the further pieces at the head of a lane away.
    pub(super) fn remove_pieces(&mut self, id: u32, fate: Fate) {
        while let Some(piece) = self.pop_piece(id) {
            let last = piece.part == Part::Last;
            self.account_left(id, &piece.run, piece.part);
            self.account_gone(piece.run, piece.part, fate);
            if last {
                return;
            }
        }
        self.open = Some(Open::Gone(fate));
    }

    pub(super) fn pop_piece(&mut self, id: u32) -> Option<Waiting> {
        let lane = &mut self.lanes[id as usize];
        let piece = lane.line.waiting.front().is_some_and(|head| matches!(head.part, Part::Middle | Part::Last));
        if piece { lane.line.waiting.pop_front() } else { None }
    }
}
