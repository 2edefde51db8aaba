use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MOST: usize = 64 << 10;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn between(old: &str, new: &str) -> String {
    let side = |text| Side {
        path: Some(b"f"),
        text,
    };
    unified(side(old), side(new), MOST, soon()).map_or_else(String::new, |made| made.text)
}

/// What `patch` does.
fn apply(old: &str, diff: &str) -> String {
    let old = lines(old);
    let mut out = String::new();
    let mut at = 0;
    let mut rest = diff.split_inclusive('\n').skip(2).peekable();
    while let Some(line) = rest.next() {
        let (mark, body) = line.split_at(1);
        let body = match rest.peek() {
            Some(next) if next.starts_with('\\') => body.strip_suffix('\n').unwrap_or(body),
            _ => body,
        };
        match mark {
            "@" => {
                let span = line.split(['-', ' ']).nth(2).unwrap_or("");
                let (start, count) = span.split_once(',').unwrap_or((span, "1"));
                let start: usize = start.parse().unwrap_or(0);
                let start = if count == "0" { start } else { start - 1 };
                out.extend(old[at..start].iter().copied());
                at = start;
            }
            "+" => out.push_str(body),
            " " | "-" => {
                assert_eq!(old[at], body);
                at += 1;
                if mark == " " {
                    out.push_str(body);
                }
            }
            "\\" => {}
            other => panic!("a line that begins with {other:?}"),
        }
    }
    out.extend(old[at..].iter().copied());
    out
}

#[test]
fn texts_are_compared_as_every_tool_does() {
    for (old, new, diff) in [
        (
            "a\nb\nc\n",
            "a\nB\nc\n",
            "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n",
        ),
        ("", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"),
        ("a\n", "", "@@ -1 +0,0 @@\n-a\n"),
        (
            "a",
            "a\n",
            "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n",
        ),
        (
            "a\nb",
            "c\nb",
            "@@ -1,2 +1,2 @@\n-a\n+c\n b\n\\ No newline at end of file\n",
        ),
        (
            "a\r\nb\r\n",
            "a\r\nc\r\n",
            "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n",
        ),
        ("a\rb\n", "a\rc\n", "@@ -1 +1 @@\n-a\rb\n+a\rc\n"),
        ("a\r\n", "a\n", "@@ -1 +1 @@\n-a\r\n+a\n"),
    ] {
        let expected = format!("--- a/f\n+++ b/f\n{diff}");
        assert_eq!(between(old, new), expected, "{old:?} {new:?}");
    }
    assert_eq!(between("same\n", "same\n"), "");
}

#[test]
fn changes_that_are_far_apart_have_hunks_of_their_own() {
    let text = |first: &str, last: &str, between: usize| {
        format!("{first}\n{}{last}\n", "x\n".repeat(between))
    };
    let near = between(&text("a", "b", 6), &text("A", "B", 6));
    assert_eq!(near.matches("@@ -").count(), 1, "{near}");
    let far = between(&text("a", "b", 7), &text("A", "B", 7));
    assert_eq!(far.matches("@@ -").count(), 2, "{far}");
}

#[test]
fn a_name_cannot_begin_a_line_or_deceive() {
    for (path, shown) in [
        (&b"d/f"[..], "a/d/f"),
        ("é".as_bytes(), "a/é"),
        (b"two words", "a/two words\t"),
        (b"new\nline", "\"a/new\\012line\""),
        (b"bad\xff", "\"a/bad\\377\""),
        (b"q\"\\", "\"a/q\\\"\\\\\""),
        ("\u{202e}x".as_bytes(), "\"a/\\342\\200\\256x\""),
    ] {
        assert_eq!(header("a/", Some(path)), shown);
    }
    assert_eq!(header("a/", None), "/dev/null");
}

#[test]
fn a_difference_past_its_bound_ends_at_the_end_of_a_line_and_says_so() {
    let new = "line\n".repeat(100);
    let side = |text| Side {
        path: Some(b"f"),
        text,
    };
    let cut = unified(side(""), side(&new), 200, soon()).expect("different");
    assert!(cut.truncated && cut.text.len() <= 200 && cut.text.ends_with("+line\n"));
    let whole = unified(side(""), side(&new), MOST, soon()).expect("different");
    assert!(!whole.truncated && whole.text.starts_with(&cut.text));
}

/// Small files that are made to take long: many lines that repeat in no order, and all of them different.
#[test]
fn no_texts_take_long_and_every_answer_is_right() {
    let mut state = 1_u32;
    let mut noise = |kinds: u32, lines: usize| -> String {
        let mut line = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            format!("{}\n", (state >> 16) % kinds)
        };
        (0..lines).map(|_| line()).collect()
    };
    let texts = [
        (noise(2, 32_000), noise(2, 32_000)),
        (noise(3, 32_000), noise(2, 32_000)),
        (noise(60_000, 11_000), noise(60_000, 11_000)),
        ("\n".repeat(65_000), "\n\r\n".repeat(21_000)),
        ("a\nb\n".repeat(16_000), "b\na\na\n".repeat(10_000)),
    ];
    for (old, new) in &texts {
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(20);
        let side = |text| Side {
            path: Some(b"f"),
            text,
        };
        let made = unified(side(old), side(new), 1 << 30, deadline).expect("different");
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(&apply(old, &made.text), new);
    }
}

proptest! {
    #[test]
    fn what_is_shown_leads_from_the_one_text_to_the_other(
        old in "([ab]\r?\n){0,12}[ab]{0,1}", new in "([ab]\r?\n){0,12}[ab]{0,1}",
    ) {
        let diff = between(&old, &new);
        if old == new {
            prop_assert_eq!(diff, "");
        } else {
            prop_assert_eq!(apply(&old, &diff), new);
        }
    }
}
