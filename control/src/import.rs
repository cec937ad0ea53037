//! Wire objects to the validated model; what is invalid fails closed and is reported.
