//! Lanes: one bucket for each key, and the table that finds them.

use super::*;

impl Bucket {
    pub(super) fn keyed(&self) -> bool {
        self.config.max_keys.is_some()
    }

    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(super) fn find_lane(&self, key: &Option<Key>) -> Option<u32> {
        let Some(key) = key else {
            return (!self.keyed()).then_some(0);
        };
        self.table.find(self.hash(key), |id| *self.lanes[*id as usize].key == **key).copied()
    }

    /// The lane for the front of the mouth, made for it if need be; `None` if the table of keys is full.
    pub(super) fn lane_for(&mut self, now: u64) -> Option<u32> {
        let key = &self.mouth.front()?.key;
        if let Some(id) = self.find_lane(key) {
            return Some(id);
        }
        let key = key.clone()?;
        // A key that is as good as new needs no state: it is forgotten, and nothing is granted by that.
        while let Some(&(fresh_at, id)) = self.idle.first()
            && fresh_at <= now
        {
            self.idle.pop_first();
            if let Some(sharing) = &mut self.sharing {
                sharing.forget(&self.lanes[id as usize].key);
            }
            let hash = self.hash(&self.lanes[id as usize].key);
            if let Ok(entry) = self.table.find_entry(hash, |other| *other == id) {
                entry.remove();
            }
            self.free.push(id);
        }
        if self.table.len() >= self.config.max_keys? {
            self.notice(Notice::KeysFull);
            return None;
        }
        let hash = self.hash(&key);
        let id = self.new_lane(key.into_vec().into());
        let (lanes, hasher) = (&self.lanes, &self.hasher);
        self.table.insert_unique(hash, id, |id| hasher.hash_one(&lanes[*id as usize].key));
        Some(id)
    }

    pub(super) fn new_lane(&mut self, key: Box<[u8]>) -> u32 {
        let lane = Lane::new(&self.config.pacer, key);
        match self.free.pop() {
            Some(id) => {
                self.lanes[id as usize] = lane;
                id
            }
            None => {
                // Doubling would leave half of a large table empty.
                if self.lanes.len() == self.lanes.capacity() {
                    self.lanes.reserve_exact(self.lanes.len() / 8 + 16);
                }
                self.lanes.push(lane);
                u32::try_from(self.lanes.len() - 1).unwrap_or(u32::MAX)
            }
        }
    }

    /// Works out anew when the head of a lane may leave, after the head or the pacer's state has changed.
    pub(super) fn refresh(&mut self, id: u32) {
        self.place(id);
        self.will_ask(id);
    }

    /// From when on the head of a lane may leave; `None` if there is none, until a write ends, or until a slot is
    /// reserved.
    pub(super) fn due(&mut self, id: u32) -> Option<Ticks> {
        let (pacer, lane) = (&self.config.pacer, &self.lanes[id as usize]);
        let head = lane.line.waiting.front()?;
        if self.unterminated == Some(head.run.number) && self.waiting_items > 1 {
            return None;
        }
        match &mut self.sharing {
            None => pacer.due(&lane.state, head.admitted, head.run.weight),
            Some(sharing) => Some(pacer.ticks(sharing.slot(lane, self.now)?).max(head.admitted)),
        }
    }

    /// Lets the unterminated item go if nobody else waits.
    pub(super) fn place_unterminated(&mut self) {
        if self.unterminated.is_some()
            && self.waiting_items == 1
            && let Some(&(_, _, id)) = self.departures.first()
        {
            self.refresh(id);
        }
    }

    pub(super) fn place(&mut self, id: u32) {
        let keyed = self.keyed();
        let due = self.due(id);
        let pacer = &self.config.pacer;
        let lane = &mut self.lanes[id as usize];
        let due = due.map(|due| pacer.ceil_ns(due));
        let mut settled = true;
        if let Some(sharing) = &mut self.sharing {
            if lane.line.waiting.is_empty() && lane.line.owed == 0 {
                sharing.give_back(&lane.key);
            }
            pacer.set_paid(&mut lane.state, pacer.ticks(sharing.ledger.paid_ns(&lane.key)));
            settled = lane.line.owed == 0 && !sharing.ledger.has_asked(&lane.key);
        }
        let head = lane.line.waiting.front().map(|head| (head.run.number, head.run.arrival));
        if keyed {
            if let Some((number, arrival, due)) = lane.line.listed {
                lane.line.listed = None;
                self.departures.remove(&(due, number, id));
                self.oldest.remove(&(arrival, number, id));
            }
            if let Some((number, arrival)) = head {
                let due = due.unwrap_or(NEVER);
                lane.line.listed = Some((number, arrival, due));
                self.departures.insert((due, number, id));
                if self.config.max_age.is_some() {
                    self.oldest.insert((arrival, number, id));
                }
            } else if lane.line.leaving == 0 {
                if !(lane.line.owed > 0 || lane.line.asking || lane.line.held) {
                    lane.line = Line::default();
                }
                let fresh_at = pacer.fresh_at(&lane.state).filter(|_| settled);
                let fresh_at = fresh_at.map_or(NEVER, |fresh_at| pacer.ceil_ns(fresh_at));
                if lane.fresh_at != BUSY {
                    self.idle.remove(&(lane.fresh_at, id));
                }
                lane.fresh_at = fresh_at;
                self.idle.insert((fresh_at, id));
                return;
            }
        }
        lane.line.due = due.unwrap_or(NEVER);
    }
}
