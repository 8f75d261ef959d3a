"""The AWS that the rehearsal deploys to: ministack and the control planes that it lacks, on one port."""
