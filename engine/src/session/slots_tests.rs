use super::*;

const BRISK: usize = 4;

/// `waiting` steps wait for a slot; `total` slots are counted, `making` of them still being made.
fn state(waiting: usize, total: usize, making: usize) -> State {
    State {
        waiting: (0..waiting).map(|_| oneshot::channel().0).collect(),
        total,
        making,
        ..State::default()
    }
}

fn growth(state: &State) -> Growth {
    state.growth(BRISK, Instant::now())
}

#[test]
fn slots_of_kernels_are_not_counted_as_those_that_steps_have() {
    assert_eq!(growth(&state(0, 2, 0)), Growth::No);
    let lent = State {
        lent: 1,
        ..state(0, 2, 0)
    };
    assert_eq!(growth(&lent), Growth::Yes);
}

#[test]
fn a_slot_is_made_for_each_step_that_waits_but_no_more_than_two_at_once() {
    assert_eq!(growth(&state(1, 2, 0)), Growth::Yes);
    assert_eq!(growth(&state(1, 3, 1)), Growth::No);
    assert_eq!(growth(&state(50, 3, 1)), Growth::Yes);
    assert_eq!(growth(&state(50, 4, 2)), Growth::No);
}

#[test]
fn a_session_where_nobody_waits_keeps_two() {
    assert_eq!(growth(&state(0, 0, 0)), Growth::Yes);
    assert_eq!(growth(&state(0, 1, 0)), Growth::Yes);
    assert_eq!(growth(&state(0, 1, 1)), Growth::No);
    assert_eq!(growth(&state(0, 2, 0)), Growth::No);
}

#[test]
fn while_steps_turn_over_no_more_are_made_than_the_processors_can_feed() {
    let ended = Instant::now();
    let brisk = |total| State {
        turned: Some(ended),
        ..state(50, total, 0)
    };
    let still = ended + TURN - Duration::from_millis(1);
    assert_eq!(brisk(BRISK - 1).growth(BRISK, still), Growth::Yes);
    assert_eq!(brisk(BRISK).growth(BRISK, still), Growth::Later);
    assert_eq!(brisk(BRISK).growth(BRISK, ended + TURN), Growth::Yes);
    // A step that ended after the clock was read.
    let before = ended
        .checked_sub(TURN)
        .expect("the machine runs for longer");
    assert_eq!(brisk(BRISK).growth(BRISK, before), Growth::Later);
    let quiet = state(50, BRISK, 0);
    assert_eq!(quiet.growth(BRISK, ended), Growth::Yes);
}

#[test]
fn a_closed_session_and_one_at_its_bound_make_none() {
    let closed = State {
        closed: true,
        ..state(50, 0, 0)
    };
    assert_eq!(growth(&closed), Growth::No);
    assert_eq!(growth(&state(50, MAX_SLOTS - 1, 0)), Growth::Yes);
    assert_eq!(growth(&state(50, MAX_SLOTS, 0)), Growth::No);
}

#[test]
fn brisk_slots_are_two_for_each_processor() {
    let processors = std::thread::available_parallelism()
        .expect("at least one")
        .get();
    assert_eq!(brisk_slots(), 2 * processors);
}
