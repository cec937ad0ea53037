//! Header views.
