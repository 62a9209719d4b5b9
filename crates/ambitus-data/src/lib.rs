//! Audio files to checked, cut, tokenised and cached clips.
