"""What a workload is like: reuse of its blocks, gaps between its turns, its sessions. Nothing here runs a policy."""
