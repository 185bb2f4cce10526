"""Engine, tables and dialect: the ground on which the stores stand."""
