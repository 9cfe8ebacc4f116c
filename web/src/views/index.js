/**
 * All views, in the order of their tabs. Each view is one file.
 */

/** @import { View } from "../contract" */

import { view as ablation } from "./ablation.js";
import { view as cell } from "./cell.js";
import { view as decoding } from "./decoding.js";
import { view as embeddings } from "./embeddings.js";
import { view as heads } from "./heads.js";
import { view as model } from "./model.js";
import { view as patterns } from "./patterns.js";
import { view as playground } from "./playground.js";
import { view as positions } from "./positions.js";
import { view as runs } from "./runs.js";
import { view as why } from "./why.js";

/** @type {View[]} */
export const VIEWS = [playground, heads, decoding, why, cell, model, ablation, embeddings, positions, patterns, runs];
