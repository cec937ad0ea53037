//! The agent's socket, seen by a client.
