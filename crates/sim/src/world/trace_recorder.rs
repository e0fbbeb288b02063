//! The recorded events of a trace, up to a limit.

use crate::trace::TraceEvent;

/// Records events until the limit is reached.
pub(crate) struct TraceRecorder {
    pub events: Vec<TraceEvent>,
    limit: usize,
}

impl TraceRecorder {
    pub fn new(limit: usize) -> TraceRecorder {
        TraceRecorder { events: Vec::new(), limit }
    }

    pub fn add(&mut self, event: TraceEvent) {
        if self.events.len() < self.limit {
            self.events.push(event);
        }
    }
}
