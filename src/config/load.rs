//! Reads the settings from their three layers and checks them, each alone and all together.
