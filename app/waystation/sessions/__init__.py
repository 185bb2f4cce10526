"""Conversations: reads, changes, forks, deletion; and the approvals that their runs wait for."""
