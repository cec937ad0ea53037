//! Fragments: the first decides for the later ones; packets too big are cut.
