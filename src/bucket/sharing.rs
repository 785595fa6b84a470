//! What a bucket does otherwise when its rate is shared.
//!
//! The slots come from a ledger instead of the pacer: the head of a lane is due at the next slot that is reserved for it,
//! and never while none is. So asking is one more event. Its calls are handed out by `take_calls`; what comes of them is
//! told to `answered`. The pacer's state mirrors what is unpaid of what left and of what others have reserved, so that
//! level and admission are reckoned as ever.
//!
//! Bucket time stands still while the hole is plugged, but no lateness is forgiven: what was reserved and is late by more
//! than the catch-up is void and reserved anew, after whatever others have reserved meanwhile.

use super::{Bucket, Lane};
use crate::pacer;
use crate::rate::Unit;
use crate::shared::ledger::{Answer, Ask, Ledger, Need, Notice, Settings};
use crate::shared::{Request, Returned, StoreError};

/// What a bucket knows of the one it shares.
#[derive(Debug)]
pub(super) struct Sharing {
    pub ledger: Ledger,
    /// What the rate counts.
    pub unit: Unit,
    batch: u64,
    /// Lanes to ask for.
    asking: Vec<u32>,
    /// Lanes to ask for again when the store may be back.
    held: Vec<u32>,
    calls: Vec<Request>,
    returned: Vec<Returned>,
}

impl Sharing {
    pub fn new(settings: Settings) -> Sharing {
        Sharing {
            ledger: Ledger::new(settings),
            unit: settings.terms.pace.unit(),
            batch: settings.terms.batch(),
            asking: Vec::new(),
            held: Vec::new(),
            calls: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// From when on the head of `lane` may leave, as far as slots go; `None` while it has none.
    pub fn slot(&mut self, lane: &Lane, now: u64) -> Option<u64> {
        let head = lane.line.waiting.front().filter(|_| lane.line.owed == 0)?;
        self.ledger.slot(&lane.key, pacer::units(self.unit, head.run.weight), now)
    }

    /// When there is something to ask; at once where that is 0.
    pub fn next_ask(&self) -> Option<u64> {
        match (self.asking.is_empty(), self.held.is_empty() || self.ledger.calling()) {
            (false, _) => Some(0),
            (true, false) => Some(self.ledger.retry_at().unwrap_or(0)),
            (true, true) => None,
        }
    }

    /// What is reserved for nobody goes back.
    pub fn give_back(&mut self, key: &[u8]) {
        if self.ledger.reserved(key) > 0 {
            self.returned.append(&mut self.ledger.give_back(key));
        }
    }

    pub fn forget(&mut self, key: &[u8]) {
        self.returned.append(&mut self.ledger.forget(key));
    }

    /// Cost of the head, and of as much of what waits as anybody would ask for.
    fn need(&self, lane: &Lane) -> Option<Need> {
        let head = lane.line.waiting.front().map(|head| pacer::units(self.unit, head.run.weight));
        if lane.line.owed > 0 {
            return Some(Need { cost: lane.line.owed, waiting: lane.line.owed, max_wait_ns: None });
        }
        let cost = head?;
        let enough = cost.saturating_add(self.ledger.reserved(&lane.key)).saturating_add(self.batch.saturating_mul(2));
        let mut waiting = 0u64;
        for next in &lane.line.waiting {
            if waiting >= enough {
                break;
            }
            let units = pacer::units(self.unit, next.run.weight);
            waiting = waiting.saturating_add(units.saturating_mul(next.run.count));
        }
        Some(Need { cost, waiting, max_wait_ns: None })
    }
}

impl Bucket {
    /// What others have reserved is paid for only in `ahead` nanoseconds.
    pub fn heard(&mut self, ahead: u64, now: u64) {
        if let Some(sharing) = &mut self.sharing {
            sharing.ledger.heard(&[], ahead, now);
        }
        self.refresh(0);
    }

    /// Whether there are calls to be made.
    pub fn has_calls(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| !sharing.calls.is_empty() || !sharing.returned.is_empty())
    }

    /// Whether a call is under way.
    pub fn is_asking(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.ledger.calling())
    }

    /// Whether something has left that is still to be reserved, with others listening.
    pub fn owes(&self) -> bool {
        let Some(sharing) = &self.sharing else { return false };
        let unsettled = !sharing.asking.is_empty() || sharing.ledger.calling();
        unsettled && sharing.ledger.retry_at().is_none()
    }

    /// The calls to be made, and what is to be given back.
    pub fn take_calls(&mut self) -> (Vec<Request>, Vec<Returned>) {
        let taken = self.sharing.as_mut();
        taken
            .map(|sharing| (std::mem::take(&mut sharing.calls), std::mem::take(&mut sharing.returned)))
            .unwrap_or_default()
    }

    /// A call was answered.
    ///
    /// # Errors
    /// What ends the run.
    pub fn answered(&mut self, answer: Answer) -> Result<Vec<Notice>, StoreError> {
        let key: Option<Box<[u8]>> = self.keyed().then(|| answer.request.key.as_slice().into());
        let lane = self.find_lane(&key);
        let Some(sharing) = &mut self.sharing else { return Ok(Vec::new()) };
        let notices = sharing.ledger.answered(answer)?;
        let held = std::mem::take(&mut sharing.held);
        if let (None, Some(key)) = (lane, key) {
            sharing.forget(&key);
        }
        for id in held.into_iter().chain(lane) {
            self.lanes[id as usize].line.held = false;
            self.pay(id);
            self.refresh(id);
        }
        Ok(notices)
    }

    /// The run ends: all that is reserved goes back.
    pub fn give_up(&mut self) -> Vec<Returned> {
        let Some(sharing) = &mut self.sharing else { return Vec::new() };
        let mut returned = std::mem::take(&mut sharing.returned);
        returned.append(&mut sharing.ledger.finish());
        returned
    }

    /// Something has changed that may need a reservation.
    pub(super) fn will_ask(&mut self, id: u32) {
        let Some(sharing) = &mut self.sharing else { return };
        let lane = &mut self.lanes[id as usize];
        if !lane.line.asking && (lane.line.owed > 0 || !lane.line.waiting.is_empty()) {
            lane.line.asking = true;
            sharing.asking.push(id);
        }
    }

    /// Asks for all who need it.
    pub(super) fn ask(&mut self) {
        let Some(sharing) = &mut self.sharing else { return };
        if !sharing.ledger.calling() && sharing.ledger.retry_at().is_none_or(|at| at <= self.at) {
            for id in std::mem::take(&mut sharing.held) {
                self.lanes[id as usize].line.held = false;
                sharing.asking.push(id);
            }
        }
        for id in std::mem::take(&mut sharing.asking) {
            let Some(sharing) = &mut self.sharing else { return };
            let lane = &mut self.lanes[id as usize];
            lane.line.asking = false;
            let Some(need) = sharing.need(lane) else { continue };
            match sharing.ledger.ask(&lane.key, need, self.now) {
                Ask::Call(request) => sharing.calls.push(request),
                Ask::Nothing | Ask::TooFar { .. } if sharing.ledger.retry_at().is_some() && !lane.line.held => {
                    lane.line.held = true;
                    sharing.held.push(id);
                }
                Ask::Nothing | Ask::TooFar { .. } => {}
            }
            // The own bucket of an outage answers at once.
            self.pay(id);
            self.place(id);
        }
    }

    /// What is owed for more of an item that has left is paid first, out of what is reserved.
    fn pay(&mut self, id: u32) {
        let Some(sharing) = &mut self.sharing else { return };
        let lane = &mut self.lanes[id as usize];
        if lane.line.owed > 0 {
            let paid = lane.line.owed.min(sharing.ledger.reserved(&lane.key));
            sharing.ledger.take(&lane.key, paid);
            lane.line.owed -= paid;
        }
    }
}
