/**
 * What every message about an unreachable server says. Such messages go away when the server is back.
 */
export const NOT_RESPONDING = "The server is not responding";
