"""Programs run on a cluster, event by event."""
