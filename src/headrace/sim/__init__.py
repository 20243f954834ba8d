"""Planning replayed over recorded or made-up routing; no model and no device is needed."""
