//! Slots that move.
