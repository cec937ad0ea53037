//! What this environment allows, what a lack costs, and the command that mends it.
