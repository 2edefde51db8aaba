//! Sizes as people write them: a whole number and a unit, `512m`.

use super::text::shown;

const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

/// Bytes of a size such as `"512k"`, `"64m"` or `"1g"`; the unit may be in capitals and end in `b` or `ib`.
///
/// # Errors
/// One sentence with the right spelling, for anything else: a bare number is refused, because half of its writers mean
/// bytes and the other half mebibytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = lower.split_at(digits);
    if number.is_empty() {
        return Err(format!(
            "{} is not a size; write a whole number and a unit, such as \"64m\"",
            shown(text)
        ));
    }
    let Some(shift) = shift(unit) else {
        return Err(if unit.is_empty() {
            format!(
                "{} has no unit; write \"{}m\" for mebibytes, or use k, m or g",
                shown(text),
                if number.trim_start_matches('0').is_empty() {
                    "64"
                } else {
                    number
                }
            )
        } else {
            format!(
                "{} has no unit that is known; write k, m or g after a whole number, such as \"64m\"",
                shown(text)
            )
        });
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(1 << shift));
    match bytes {
        Some(0) => Err(format!(
            "{} is nothing; write a size above 0, such as \"64m\"",
            shown(text)
        )),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{} is more than a machine can hold", shown(text))),
    }
}

fn shift(unit: &str) -> Option<u32> {
    let (name, shift) = UNITS
        .iter()
        .find(|(name, _)| unit.starts_with(*name))
        .copied()?;
    matches!(&unit[name.len_utf8()..], "" | "b" | "ib").then_some(shift)
}

/// A size for a sentence: `64 MiB` where it is whole, else bytes.
#[must_use]
pub fn mebibytes(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_unit_is_bytes() {
        for (text, bytes) in [
            ("512k", 512 << 10),
            ("64m", 64 << 20),
            ("64M", 64 << 20),
            ("64mb", 64 << 20),
            ("64MiB", 64 << 20),
            ("1g", 1 << 30),
            (" 1g ", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_right_spelling() {
        for text in [
            "",
            "64",
            "0",
            "0m",
            "m",
            "-1m",
            "1.5g",
            "64q",
            "64mm",
            "99999999999999999999g",
            "18446744073709551615g",
            "true",
        ] {
            let said = parse_size(text).expect_err(text);
            assert!(
                said.contains("m\"") || said.contains("more than a machine"),
                "{text}: {said}"
            );
        }
        assert!(parse_size("64").is_err_and(|said| said.contains("\"64m\"")));
    }
}
