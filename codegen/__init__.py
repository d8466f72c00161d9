"""Native code from programs of the last level."""
