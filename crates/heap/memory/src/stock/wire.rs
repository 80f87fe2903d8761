//! The messages between a broker and its clients, byte for byte. Pure. All values are
//! little-endian.

use megapage_units::PageSize;

/// Bytes of a request: `MPQ1`, its kind, flags, two zeros, the page size in bytes, the number of
/// pages.
pub const REQUEST: usize = 24;
/// Bytes of an answer: `MPA1`, the verdict, three zeros, the page size in bytes, the pages of an
/// extent, the number of descriptors that come with it, the length in bytes of the text that
/// follows it.
pub const ANSWER: usize = 40;

const REQUEST_MAGIC: [u8; 4] = *b"MPQ1";
const ANSWER_MAGIC: [u8; 4] = *b"MPA1";
const TAKE: u8 = 1;
const STATUS: u8 = 2;
const FRESH: u8 = 1;

/// Request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Memory.
    Take {
        /// On pages of this size.
        size: PageSize,
        /// Pages that are asked for. They come in whole extents: at least one extent, else no more
        /// pages than asked for.
        pages: u64,
        /// True if the program has just begun: the pages that its process took before an execve(2)
        /// are no longer in use.
        fresh: bool,
    },
    /// State of the broker, as JSON.
    Status,
}

megapage_units::named! {
    /// Result of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Verdict {
        /// As asked for.
        Done = "done",
        /// The request could not be read.
        Malformed = "malformed",
        /// The user may not ask.
        Denied = "denied",
        /// The broker has pages of another size, which the answer names.
        OtherSize = "other-size",
        /// Nothing is ready: come again later.
        Empty = "empty",
        /// The user has as much as one user may have.
        Quota = "quota",
        /// All users together have as much as the broker can look after.
        Full = "full",
        /// The process cannot be seen from where the broker runs, or has ended.
        Unseen = "unseen",
    }
}

impl Verdict {
    /// Returns the verdict in words, for a report or a message.
    pub const fn explain(self) -> &'static str {
        match self {
            Verdict::Done => "done",
            Verdict::Malformed => "the broker cannot read the request: it is another version's",
            Verdict::Denied => "the broker does not serve this user",
            Verdict::OtherSize => "the broker has pages of another size",
            Verdict::Empty => "the broker has no page ready at present",
            Verdict::Quota => "the user has as much of the broker's memory as one may have",
            Verdict::Full => "the broker looks after as many extents as it can",
            Verdict::Unseen => "the broker cannot see this process, which is in another PID namespace",
        }
    }
}

/// Answer of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Result of the request.
    pub verdict: Verdict,
    /// The size of the broker's pages, in bytes.
    pub page_bytes: u64,
    /// The pages of an extent.
    pub extent_pages: u64,
    /// Extents, each a descriptor that comes with the answer.
    pub extents: u64,
    /// Bytes of text that follow.
    pub text: u64,
}

impl Request {
    /// Reads a request. Returns `None` if the bytes are none.
    pub fn decode(bytes: &[u8; REQUEST]) -> Option<Request> {
        let (magic, what, flags) = (&bytes[..4], bytes[4], bytes[5]);
        if magic != REQUEST_MAGIC || bytes[6..8] != [0, 0] {
            return None;
        }
        let (size, pages) = (value(bytes, 8), value(bytes, 16));
        match (what, flags) {
            (TAKE, 0 | FRESH) if pages > 0 => {
                Some(Request::Take { size: PageSize::new(size)?, pages, fresh: flags == FRESH })
            }
            (STATUS, 0) if size == 0 && pages == 0 => Some(Request::Status),
            _ => None,
        }
    }

    /// Returns the bytes of the request.
    pub fn encode(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC);
        match self {
            Request::Take { size, pages, fresh } => {
                bytes[4] = TAKE;
                bytes[5] = if fresh { FRESH } else { 0 };
                bytes[8..16].copy_from_slice(&size.bytes().0.to_le_bytes());
                bytes[16..24].copy_from_slice(&pages.to_le_bytes());
            }
            Request::Status => bytes[4] = STATUS,
        }
        bytes
    }
}

impl Answer {
    /// Reads an answer. Returns `None` if the bytes are none.
    pub fn decode(bytes: &[u8; ANSWER]) -> Option<Answer> {
        if bytes[..4] != ANSWER_MAGIC || bytes[5..8] != [0; 3] {
            return None;
        }
        Some(Answer {
            verdict: Verdict::ALL.into_iter().find(|verdict| *verdict as u8 == bytes[4])?,
            page_bytes: value(bytes, 8),
            extent_pages: value(bytes, 16),
            extents: value(bytes, 24),
            text: value(bytes, 32),
        })
    }

    /// Returns the bytes of the answer.
    pub fn encode(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..4].copy_from_slice(&ANSWER_MAGIC);
        bytes[4] = self.verdict as u8;
        let values = [self.page_bytes, self.extent_pages, self.extents, self.text];
        for (place, value) in bytes[8..].chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

fn value(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests() -> impl Strategy<Value = Request> {
        let size = prop_oneof![Just(PageSize::HUGE_2M), Just(PageSize::HUGE_1G)];
        prop_oneof![
            Just(Request::Status),
            (size, 1..=u64::MAX, any::<bool>()).prop_map(|(size, pages, fresh)| Request::Take {
                size,
                pages,
                fresh
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(request in requests()) {
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }

        #[test]
        fn any_bytes_are_a_request_or_none(bytes in any::<[u8; REQUEST]>(), magic in any::<bool>()) {
            let mut bytes = bytes;
            if magic {
                bytes[..4].copy_from_slice(&REQUEST_MAGIC);
                bytes[4] %= 4;
                bytes[5] %= 3;
                bytes[6..8].fill(0);
            }
            // There is one way to write a request, so that it encodes to the same bytes.
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), bytes);
            }
        }

        #[test]
        fn answers_are_read_as_they_are_written(values in any::<[u64; 4]>(), verdict in 0..8usize) {
            let answer = Answer {
                verdict: Verdict::ALL[verdict],
                page_bytes: values[0],
                extent_pages: values[1],
                extents: values[2],
                text: values[3],
            };
            prop_assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }

        #[test]
        fn any_bytes_are_an_answer_or_none(bytes in any::<[u8; ANSWER]>(), magic in any::<bool>()) {
            let mut bytes = bytes;
            if magic {
                bytes[..4].copy_from_slice(&ANSWER_MAGIC);
                bytes[4] %= 12;
                bytes[5..8].fill(0);
            }
            if let Some(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(answer.encode(), bytes);
            }
        }
    }
}
