/**
 * All views, in the order in which they are offered. A view is a file; this is the list of them.
 */

/** @import { View } from "../contract" */

import { view as box } from "./box.js";
import { view as cell } from "./cell.js";
import { view as decoding } from "./decoding.js";
import { view as heads } from "./heads.js";
import { view as model } from "./model.js";
import { view as positions } from "./positions.js";
import { view as runs } from "./runs.js";
import { view as switches } from "./switch.js";

/** @type {View[]} */
export const VIEWS = [box, heads, decoding, cell, model, switches, positions, runs];
