//! Framing: bytes become items.
//!
//! A framer is fed blocks and cuts what is complete off their front. What is left is the beginning of an item, to be
//! put in front of the next bytes. An item that grows beyond `LARGEST_PIECE` is passed on in pieces.

use crate::bucket::Part;
use crate::run::Layout;

/// How bytes become items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Each ends with this delimiter (at least one byte), which is part of it.
    Delimited(Vec<u8>),
    /// Each has this many bytes, at least 1.
    Records(usize),
    /// Whatever has been read, cut into chunks of this many bytes at most.
    Chunks(usize),
}

/// An item of more bytes than this is passed on in pieces.
pub const LARGEST_PIECE: usize = 1 << 20;

impl Framing {
    /// How items lie in a block.
    pub fn layout(&self) -> Layout {
        match self {
            Framing::Delimited(delimiter) => Layout::delimiter(delimiter),
            Framing::Records(size) | Framing::Chunks(size) => Layout::Fixed(*size),
        }
    }
}

/// The bytes that a delimiter written as `text` stands for: `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\xHH` are understood.
///
/// # Errors
/// What is wrong with it, for the user.
pub fn delimiter(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (b'\\', [b'0', after @ ..]) => (0, after),
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16);
                match (digit(high), digit(low)) {
                    (Some(high), Some(low)) => ((high * 16 + low) as u8, after),
                    _ => return Err("two hexadecimal digits go after \\x, as in \\x1e"),
                }
            }
            (b'\\', _) => return Err("a backslash goes before n, r, t, 0, xHH or another backslash"),
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    if bytes.is_empty() {
        Err("a delimiter needs at least one byte; for chunks of any length say --bytes")
    } else {
        Ok(bytes)
    }
}

/// Items, or a part of one, at the front of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Their bytes.
    pub len: usize,
    /// How many items begin in it: 0 for a further piece.
    pub count: u64,
    /// Which part of an item it is.
    pub part: Part,
}

impl Piece {
    fn whole(len: usize, count: u64) -> Option<Piece> {
        (count > 0).then_some(Piece { len, count, part: Part::Whole })
    }
}

/// Cuts blocks into items.
#[derive(Debug)]
pub struct Framer {
    framing: Framing,
    layout: Layout,
    /// Whether every item has to be a piece of its own.
    singly: bool,
    /// So many bytes of the item that has begun are known to hold no delimiter.
    scanned: usize,
    /// An item has been passed on in part; a record still lacks so many bytes.
    streams: Option<usize>,
}

impl Framer {
    /// A framer that takes items together where it can, or each by itself if `singly`.
    pub fn new(framing: Framing, singly: bool) -> Framer {
        Framer { layout: framing.layout(), framing, singly, scanned: 0, streams: None }
    }

    /// How items lie in a block.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What can be cut off the front of `block`, which begins where the last piece ended; `None` if that takes more
    /// bytes. `end` says that no more will come: then the rest is an item too.
    pub fn next(&mut self, block: &[u8], end: bool) -> Option<Piece> {
        if let Some(lacking) = self.streams {
            return self.next_piece(block, end, lacking);
        }
        let piece = match self.framing {
            Framing::Chunks(size) => return self.chunks(size, block.len()),
            Framing::Records(_) | Framing::Delimited(_) => self.whole_items(block),
        };
        if piece.is_some() {
            self.scanned = 0;
            return piece;
        }
        if end {
            return Piece::whole(block.len(), u64::from(!block.is_empty()));
        }
        self.scanned = block.len();
        if block.len() < LARGEST_PIECE {
            return None;
        }
        let len = block.len() - self.kept_back();
        self.streams = Some(if let Framing::Records(size) = self.framing { size - len } else { 0 });
        Some(Piece { len, count: 1, part: Part::First })
    }

    /// What can be cut off the front of `len` bytes that nobody looks at; `None` if there are none, or their content
    /// would matter.
    pub fn next_unseen(&self, len: usize) -> Option<Piece> {
        match self.framing {
            Framing::Chunks(size) => self.chunks(size, len),
            Framing::Records(_) | Framing::Delimited(_) => None,
        }
    }

    fn chunks(&self, size: usize, len: usize) -> Option<Piece> {
        match len / size {
            0 => Piece::whole(len, u64::from(len > 0)),
            _ if self.singly => Piece::whole(size, 1),
            count => Piece::whole(count * size, count as u64),
        }
    }

    fn whole_items(&self, block: &[u8]) -> Option<Piece> {
        let from = self.scanned.saturating_sub(self.kept_back()).min(block.len());
        let from = if let Framing::Records(_) = self.framing { 0 } else { from };
        if self.singly {
            let len = from + self.layout.first_end(&block[from..])?;
            return Piece::whole(len, 1);
        }
        let (count, len) = self.layout.count(&block[from..]);
        Piece::whole(from + len, count)
    }

    /// The next piece of an item that has been passed on in part.
    fn next_piece(&mut self, block: &[u8], end: bool, lacking: usize) -> Option<Piece> {
        let ends = match self.framing {
            Framing::Records(_) => (block.len() >= lacking).then_some(lacking),
            _ => self.layout.first_end(block),
        };
        if let Some(len) = ends.or(end.then_some(block.len())) {
            (self.streams, self.scanned) = (None, 0);
            return Some(Piece { len, count: 0, part: Part::Last });
        }
        let len = block.len().saturating_sub(self.kept_back());
        self.streams = Some(lacking.saturating_sub(len));
        (len > 0).then_some(Piece { len, count: 0, part: Part::Middle })
    }

    /// Bytes in which a delimiter may have begun.
    fn kept_back(&self) -> usize {
        self.layout.delimiter_bytes().len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `input` in blocks of `size` and returns the pieces' bytes and parts.
    fn pieces(framing: Framing, singly: bool, input: &[u8], size: usize) -> Vec<(Vec<u8>, u64, Part)> {
        let mut framer = Framer::new(framing, singly);
        let (mut rest, mut pieces) = (Vec::new(), Vec::new());
        for (i, block) in input.chunks(size.max(1)).chain([&[][..]]).enumerate() {
            rest.extend_from_slice(block);
            let end = i == input.len().div_ceil(size.max(1));
            while let Some(piece) = framer.next(&rest, end) {
                pieces.push((rest.drain(..piece.len).collect(), piece.count, piece.part));
            }
        }
        assert!(rest.is_empty(), "nothing is lost");
        pieces
    }

    #[test]
    fn lines_end_with_their_newline_and_the_last_may_lack_it() {
        for size in 1..8 {
            let lines = pieces(Framing::Delimited(b"\n".to_vec()), true, b"a\n\n\r\nb", size);
            let texts: Vec<&[u8]> = lines.iter().map(|line| &line.0[..]).collect();
            assert_eq!(texts, [&b"a\n"[..], b"\n", b"\r\n", b"b"]);
        }
    }

    #[test]
    fn a_delimiter_is_written_with_escapes() {
        assert_eq!(delimiter(r"\n\t\0\x1E\\--é").unwrap(), b"\n\t\0\x1e\\--\xc3\xa9");
        for bad in ["", r"\", r"\q", r"\x1", r"\xzz"] {
            assert!(delimiter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_delimiter_may_come_in_parts() {
        for size in 1..9 {
            let items = pieces(Framing::Delimited(b"abab".to_vec()), true, b"xababababyab", size);
            let texts: Vec<&[u8]> = items.iter().map(|item| &item.0[..]).collect();
            assert_eq!(texts, [&b"xabab"[..], b"abab", b"yab"], "in blocks of {size}");
        }
    }

    #[test]
    fn an_item_above_the_largest_piece_is_one_item_in_pieces() {
        let long = [vec![b'x'; 3 * LARGEST_PIECE], b"\r\nlast\r\n".to_vec()].concat();
        for framing in [Framing::Delimited(b"\n".to_vec()), Framing::Delimited(b"\r\n".to_vec())] {
            let items = pieces(framing, false, &long, 65_537);
            assert_eq!(items.iter().map(|item| item.1).sum::<u64>(), 2);
            assert_eq!(items.first().map(|item| item.2), Some(Part::First));
            let last = items.iter().position(|item| item.2 == Part::Last).unwrap();
            assert_eq!(items[last + 1].0, b"last\r\n");
            assert_eq!(items.concat_bytes(), long);
        }
        let records = pieces(Framing::Records(LARGEST_PIECE * 2), false, &vec![1; LARGEST_PIECE * 5], 65_536);
        assert_eq!(records.iter().map(|item| item.1).sum::<u64>(), 3);
        assert_eq!(records.iter().filter(|item| item.2 == Part::Last).count(), 2 + 1);
    }

    #[test]
    fn records_and_chunks_are_cut_by_length() {
        let records = pieces(Framing::Records(3), false, b"abcdefgh", 4);
        assert_eq!(records.iter().map(|record| record.1).sum::<u64>(), 3);
        let chunks = pieces(Framing::Chunks(3), true, b"abcdefgh", 8);
        assert_eq!(chunks.iter().map(|chunk| chunk.0.len()).collect::<Vec<_>>(), [3, 3, 2]);
    }

    trait ConcatBytes {
        fn concat_bytes(&self) -> Vec<u8>;
    }

    impl ConcatBytes for Vec<(Vec<u8>, u64, Part)> {
        fn concat_bytes(&self) -> Vec<u8> {
            self.iter().flat_map(|item| item.0.clone()).collect()
        }
    }
}
