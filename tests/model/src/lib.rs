//! The protocol of plays as a model, checked exhaustively.
