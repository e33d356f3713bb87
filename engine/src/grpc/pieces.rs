//! Where a protobuf message may be cut: its pieces, each merged into what came before, are the same message.

const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const COUNTED: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// Bytes of the longest varint.
const LONGEST_VARINT: usize = 10;

/// Where the pieces of a message end. Each has at least so many bytes, but the last, and is cut between two fields of
/// the message itself. What is no message, or has a group, is one piece from there on: its parser says what is wrong.
pub(crate) fn ends_of_pieces(message: &[u8], least: usize) -> Vec<usize> {
    let (mut ends, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some(end) = end_of_field(message, at) {
        at = end;
        if at - begin >= least && at < message.len() {
            ends.push(at);
            begin = at;
        }
    }
    if begin < message.len() {
        ends.push(message.len());
    }
    ends
}

/// Where a field ends; nothing if it does not end in the message, or is none.
fn end_of_field(message: &[u8], at: usize) -> Option<usize> {
    let (tag, at) = varint(message, at)?;
    let end = match tag.to_le_bytes()[0] & 7 {
        VARINT => varint(message, at)?.1,
        EIGHT_BYTES => at.checked_add(8)?,
        FOUR_BYTES => at.checked_add(4)?,
        COUNTED => {
            let (length, at) = varint(message, at)?;
            at.checked_add(usize::try_from(length).ok()?)?
        }
        _ => return None,
    };
    (end <= message.len()).then_some(end)
}

/// A number, and where it ends.
fn varint(message: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    for (index, byte) in message.get(at..)?.iter().take(LONGEST_VARINT).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * index).min(63);
        if byte & 0x80 == 0 {
            return Some((number, at + index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | COUNTED, u8::try_from(value.len()).unwrap()], value].concat()
    }

    #[test]
    fn a_message_is_cut_between_fields_once_a_piece_is_long_enough() {
        let message = [field(1, b"abcd"), field(2, b""), field(2, b"abcdefgh"), field(3, b"a")].concat();
        assert_eq!(ends_of_pieces(&message, 7), [8, 18, 21]);
        assert_eq!(ends_of_pieces(&message, 1), [6, 8, 18, 21]);
        assert_eq!(ends_of_pieces(&message, 100), [21]);
        assert_eq!(ends_of_pieces(&[], 1), [0; 0]);
    }

    #[test]
    fn fields_of_every_kind_are_passed_over() {
        let kinds =
            [vec![0x08, 0xff, 0x01], [vec![0x09], vec![0xff; 8]].concat(), [vec![0x0d], vec![0xff; 4]].concat()];
        assert_eq!(ends_of_pieces(&kinds.concat(), 1), [3, 12, 17]);
    }

    #[test]
    fn what_is_no_message_is_one_piece_from_there_on() {
        let whole = field(1, b"abcd");
        let no_messages: [&[u8]; 7] = [
            &[0x0a],                                                                   // no length
            &[0x0a, 5, 1],                                                             // more declared than there is
            &[0x0b, 0x0a, 0],                                                          // a group
            &[0x0f, 0],                                                                // no kind
            &[0xff; 11],                                                               // a number without an end
            &[0x0d, 1, 2, 3],                                                          // three bytes of four
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x0a], // the longest length of all
        ];
        for rest in no_messages {
            let message = [whole.as_slice(), rest].concat();
            assert_eq!(ends_of_pieces(&message, 1), [whole.len(), message.len()], "{rest:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_follow_each_other_to_the_end_whatever_comes(message: Vec<u8>, least in 0_usize..100) {
            let ends = ends_of_pieces(&message, least);
            prop_assert!(ends.is_sorted_by(|one, next| one < next));
            prop_assert_eq!(ends.last().copied().unwrap_or(0), message.len());
        }
    }
}
