//! Links, addresses, routes and neighbours of a namespace.
