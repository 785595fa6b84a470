//! What waits: runs, not items.
//!
//! A run is a stretch of a shared block that holds `count` whole items one after the other. Counting the delimiters of
//! a block is much cheaper than finding each, so where a run has to be cut is looked for only when it is cut.

use memchr::memmem::Finder;
use std::sync::Arc;

/// A stretch of a block of bytes, shared without copying.
#[derive(Clone, Debug)]
pub struct Slice {
    block: Block,
    start: usize,
    end: usize,
}

/// Where the bytes are.
#[derive(Clone, Debug)]
enum Block {
    /// Here.
    Read(Arc<Vec<u8>>),
    /// In the conduit: nobody needs to see them, and what leaves first stands first there.
    Passing,
}

impl Slice {
    /// The whole of `block`.
    pub fn new(block: Vec<u8>) -> Slice {
        let end = block.len();
        Slice { block: Block::Read(Arc::new(block)), start: 0, end }
    }

    /// `len` bytes that stand in the conduit.
    pub fn passing(len: usize) -> Slice {
        Slice { block: Block::Passing, start: 0, end: len }
    }

    /// Whether the bytes stand in the conduit.
    pub fn is_passing(&self) -> bool {
        matches!(self.block, Block::Passing)
    }

    /// The bytes; none if they stand in the conduit.
    pub fn bytes(&self) -> &[u8] {
        match &self.block {
            Block::Read(block) => &block[self.start..self.end],
            Block::Passing => &[],
        }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Cuts off and returns the first `at` bytes.
    pub fn split_to(&mut self, at: usize) -> Slice {
        let head = self.range(0, at);
        self.start += at;
        head
    }

    /// The bytes `from..to` of this slice, sharing its block.
    pub fn range(&self, from: usize, to: usize) -> Slice {
        assert!(from <= to && to <= self.len());
        Slice { block: self.block.clone(), start: self.start + from, end: self.start + to }
    }

    /// A slice that does not keep much more memory alive than it shows: a short one gets a block of its own, so that
    /// one line that waits for an hour does not hold 64 KiB.
    pub fn settled(self) -> Slice {
        match &self.block {
            Block::Read(block) if self.len() < block.capacity() / 4 => Slice::new(self.bytes().to_vec()),
            _ => self,
        }
    }

    /// The block itself, if nobody else holds a slice of it, to be filled again.
    pub fn into_block(self) -> Option<Vec<u8>> {
        match self.block {
            Block::Read(block) => Arc::into_inner(block),
            Block::Passing => None,
        }
    }
}

/// Where one item ends and the next begins.
#[derive(Clone, Debug)]
pub enum Layout {
    /// After each of this byte.
    Byte(u8),
    /// After each of this text of two bytes or more.
    Text(Box<Finder<'static>>),
    /// After this many bytes.
    Fixed(usize),
}

impl Layout {
    /// The layout for a delimiter of any length above 0.
    pub fn delimiter(text: &[u8]) -> Layout {
        match text {
            [byte] => Layout::Byte(*byte),
            _ => Layout::Text(Box::new(Finder::new(text).into_owned())),
        }
    }

    /// Bytes of the delimiter.
    pub fn delimiter_bytes(&self) -> &[u8] {
        match self {
            Layout::Byte(byte) => std::slice::from_ref(byte),
            Layout::Text(finder) => finder.needle(),
            Layout::Fixed(_) => &[],
        }
    }

    /// How many items end in the first `len` bytes of `slice`, which begins with one.
    pub fn count_in(&self, slice: &Slice, len: usize) -> u64 {
        match self {
            // Here the bytes do not matter, and may not be at hand.
            Layout::Fixed(size) => (len / size) as u64,
            _ => self.count(&slice.bytes()[..len]).0,
        }
    }

    /// Where the `n`th item of `slice` ends (from 1); its end where it has fewer.
    pub fn nth_end_in(&self, slice: &Slice, n: u64) -> usize {
        match self {
            Layout::Fixed(size) => fixed_end(slice.len(), *size, n),
            _ => self.nth_end(slice.bytes(), n),
        }
    }

    /// Whether `slice`, which holds one item, has all of it: only the last of an input may lack its delimiter, or bytes.
    pub fn ends(&self, slice: &Slice) -> bool {
        match self {
            Layout::Fixed(size) => slice.len() == *size,
            _ => slice.bytes().ends_with(self.delimiter_bytes()),
        }
    }

    /// How many items end in `bytes`, which begins with one, and where the last of them ends.
    pub fn count(&self, bytes: &[u8]) -> (u64, usize) {
        match self {
            Layout::Byte(byte) => match memchr::memrchr(*byte, bytes) {
                Some(last) => (memchr::memchr_iter(*byte, &bytes[..=last]).count() as u64, last + 1),
                None => (0, 0),
            },
            Layout::Text(finder) => {
                let ends = finder.find_iter(bytes).map(|at| at + finder.needle().len());
                ends.fold((0, 0), |(count, _), end| (count + 1, end))
            }
            Layout::Fixed(size) => ((bytes.len() / size) as u64, bytes.len() / size * size),
        }
    }

    /// Where the first item of `bytes` ends, if it does.
    pub fn first_end(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Layout::Byte(byte) => memchr::memchr(*byte, bytes).map(|at| at + 1),
            Layout::Text(finder) => finder.find(bytes).map(|at| at + finder.needle().len()),
            Layout::Fixed(size) => (bytes.len() >= *size).then_some(*size),
        }
    }

    /// Where the `n`th item of `bytes` ends (from 1); the end of `bytes` where it has fewer delimiters.
    pub fn nth_end(&self, bytes: &[u8], n: u64) -> usize {
        const STRIDE: usize = 1024;
        match self {
            _ if n == 0 => 0,
            Layout::Byte(byte) => {
                // Counting a stride is cheaper than visiting its delimiters, so only the last stride is visited.
                let (mut from, mut left) = (0, n);
                loop {
                    let stride = &bytes[from..bytes.len().min(from + STRIDE)];
                    let count = memchr::memchr_iter(*byte, stride).count() as u64;
                    if count >= left {
                        let at = memchr::memchr_iter(*byte, stride).nth(left as usize - 1);
                        return at.map_or(bytes.len(), |at| from + at + 1);
                    }
                    if from + stride.len() == bytes.len() {
                        return bytes.len();
                    }
                    left -= count;
                    from += stride.len();
                }
            }
            Layout::Text(finder) => {
                let nth = usize::try_from(n - 1).ok().and_then(|nth| finder.find_iter(bytes).nth(nth));
                nth.map_or(bytes.len(), |at| at + finder.needle().len())
            }
            Layout::Fixed(size) => fixed_end(bytes.len(), *size, n),
        }
    }
}

/// Where the `n`th of the items of `size` bytes ends, within `len`.
fn fixed_end(len: usize, size: usize, n: u64) -> usize {
    usize::try_from(n).map_or(len, |n| len.min(n.saturating_mul(size)))
}

/// What an item weighs to the different kinds of rates and capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Its length with the delimiter, in bytes. Of the items of one run it need not be the same where nobody asks.
    pub len: u64,
    /// What `--cost` read out of it; 1 otherwise.
    pub cost: u64,
}

/// Items that stand one after the other in a block and share their arrival.
#[derive(Clone, Debug)]
pub struct Run {
    /// Their bytes.
    pub slice: Slice,
    /// How many they are. 0 marks a further piece of the item before, which is too long to be held in one.
    pub count: u64,
    /// What each of them weighs.
    pub weight: Weight,
    /// The number of the first, from 1.
    pub number: u64,
    /// When they were read, in real time.
    pub arrival: u64,
}

impl Run {
    /// Cuts off and returns the first `n` items; `n` below `count`.
    pub fn split_to(&mut self, n: u64, layout: &Layout) -> Run {
        let at = layout.nth_end_in(&self.slice, n);
        let head = Run { slice: self.slice.split_to(at), count: n, ..*self };
        self.count -= n;
        self.number += n;
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_end_is_where_a_plain_search_finds_it() {
        let text = b"a\n\nbb\n".repeat(1000);
        let layout = Layout::Byte(b'\n');
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', &text).map(|at| at + 1).collect();
        for (i, end) in ends.iter().enumerate() {
            assert_eq!(layout.nth_end(&text, i as u64 + 1), *end);
        }
        assert_eq!(layout.count(&text), (3000, text.len()));
        assert_eq!(layout.nth_end(&text, 3001), text.len());
    }

    #[test]
    fn a_text_delimiter_is_found_leftmost_first() {
        let layout = Layout::delimiter(b"aa");
        assert_eq!(layout.count(b"aaaaab"), (2, 4));
        assert_eq!(layout.nth_end(b"xaayaa", 2), 6);
    }

    #[test]
    fn splitting_a_run_keeps_its_bytes() {
        let slice = Slice::new(b"1\n22\n333\n".to_vec());
        let mut run = Run { slice, count: 3, weight: Weight { len: 1, cost: 1 }, number: 7, arrival: 0 };
        let head = run.split_to(2, &Layout::Byte(b'\n'));
        assert_eq!((head.slice.bytes(), head.count, head.number), (&b"1\n22\n"[..], 2, 7));
        assert_eq!((run.slice.bytes(), run.count, run.number), (&b"333\n"[..], 1, 9));
    }
}
