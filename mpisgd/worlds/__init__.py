"""Worlds run algorithms: real ranks on the wall clock, virtual ranks on a virtual one."""
