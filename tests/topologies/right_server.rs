//! A plain URL that reaches a server of another topology.
