"""Programs of files that other tools wrote: schedules, records of runs, algorithms."""
