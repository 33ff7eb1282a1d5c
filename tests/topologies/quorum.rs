//! A majority of independent masters.
