"""How tokens are noised and un-noised: schedules, and one file for each family of processes."""
