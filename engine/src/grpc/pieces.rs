//! Where a protobuf message may be cut: its pieces, each merged into the ones before, are the same message.

const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const COUNTED: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// Bytes of the longest varint.
const LONGEST_VARINT: usize = 10;

/// Where a piece of a message ends that begins at a field. It ends between two fields of the message itself, as soon as it
/// has so many bytes or so many fields. If the rest is less, or no message, or has a group, the piece is the whole rest.
/// Parsing it reports the error.
pub(crate) fn end_of_piece(message: &[u8], begin: usize, least_bytes: usize, most_fields: usize) -> usize {
    let mut at = begin;
    for _ in 0..most_fields {
        let Some(end) = end_of_field(message, at) else { return message.len() };
        at = end;
        if at - begin >= least_bytes {
            break;
        }
    }
    at
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
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, at + index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 1_000;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | COUNTED, u8::try_from(value.len()).expect("short")], value].concat()
    }

    fn ends_of_pieces(message: &[u8], least_bytes: usize, most_fields: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        while ends.last().copied().unwrap_or(0) < message.len() {
            ends.push(end_of_piece(message, ends.last().copied().unwrap_or(0), least_bytes, most_fields));
        }
        ends
    }

    #[test]
    fn a_message_is_cut_between_fields_once_a_piece_is_long_enough() {
        let message = [field(1, b"abcd"), field(2, b""), field(2, b"abcdefgh"), field(3, b"a")].concat();
        assert_eq!(ends_of_pieces(&message, 7, MANY), [8, 18, 21]);
        assert_eq!(ends_of_pieces(&message, 1, MANY), [6, 8, 18, 21]);
        assert_eq!(ends_of_pieces(&message, 100, MANY), [21]);
        assert_eq!(end_of_piece(&[], 0, 1, MANY), 0);
    }

    #[test]
    fn a_piece_of_many_small_fields_is_cut_by_their_number() {
        let message = field(4, b"").repeat(7);
        assert_eq!(ends_of_pieces(&message, 100, 3), [6, 12, 14]);
    }

    #[test]
    fn fields_of_every_kind_are_passed_over() {
        let kinds =
            [vec![0x08, 0xff, 0x01], [vec![0x09], vec![0xff; 8]].concat(), [vec![0x0d], vec![0xff; 4]].concat()];
        assert_eq!(ends_of_pieces(&kinds.concat(), 1, MANY), [3, 12, 17]);
    }

    #[test]
    fn what_is_no_message_is_one_piece_with_all_that_follows() {
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
            assert_eq!(ends_of_pieces(&message, 1, MANY), [whole.len(), message.len()], "{rest:?}");
        }
    }
}
