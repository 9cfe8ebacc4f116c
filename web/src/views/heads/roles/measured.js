/**
 * What was measured of the heads of one attention type: looking up, sorting and describing it.
 */

/** @import { AttentionType, HeadRoles } from "../../../contract" */

import { formatPercent } from "../../../page/format.js";

/** @typedef {HeadRoles["measures"][number]} Measure */
/** @typedef {HeadRoles["heads"][number]} Role */
/** @typedef {{ layer: number, head: number }} Head */

/** The choice of all heads that have any tag. */
export const ANY_TAG = "*";

export class MeasuredHeads {
  /** @param {HeadRoles | null} roles @param {AttentionType} type */
  constructor(roles, type) {
    /** @type {Measure[]} */
    this.measures = (roles?.measures ?? []).filter((measure) => measure.attention_type === type);
    const order = new Map(this.measures.map((measure, index) => [measure.name, index]));
    /** By head ("layer.head"), in the order of the measures. @type {Map<string, Role[]>} */
    this.heads = new Map();
    for (const role of roles?.heads ?? []) {
      if (role.attention_type !== type) continue;
      const name = `${role.layer}.${role.head}`;
      const known = this.heads.get(name);
      if (known === undefined) this.heads.set(name, [role]);
      else known.push(role);
    }
    for (const each of this.heads.values())
      each.sort((a, b) => (order.get(a.measure) ?? 0) - (order.get(b.measure) ?? 0));
  }

  /** @param {string} name */
  measure(name) {
    return this.measures.find((measure) => measure.name === name);
  }

  /** @param {Head} head @param {string} measure */
  role({ layer, head }, measure) {
    return this.heads.get(`${layer}.${head}`)?.find((role) => role.measure === measure);
  }

  /** The measures by which a head has a tag. @param {Head} head @returns {Measure[]} */
  tags({ layer, head }) {
    const tagged = (this.heads.get(`${layer}.${head}`) ?? []).filter((role) => role.tagged);
    return tagged.flatMap((role) => this.measure(role.measure) ?? []);
  }

  /** The number of heads that have a tag. @param {string} measure */
  count(measure) {
    return [...this.heads.values()].filter((roles) => roles.some((role) => role.measure === measure && role.tagged)).length;
  }

  /**
   * The heads that have a tag, all if it is "" or nobody has it, those that do most of a measure first.
   * @param {Head[]} heads @param {string} measure @param {string} tag
   */
  select(heads, measure, tag) {
    const tagged = heads.filter((head) =>
      tag === ANY_TAG ? this.tags(head).length > 0 : this.role(head, tag)?.tagged,
    );
    const selected = tag === "" || tagged.length === 0 ? heads : tagged;
    const about = this.measure(measure);
    if (about === undefined) return selected;
    const sign = about.is_error ? 1 : -1;
    const value = (/** @type {Head} */ head) => sign * (this.role(head, measure)?.value ?? 0);
    return [...selected].sort((a, b) => value(a) - value(b));
  }

  /** What a head does, in a sentence. @param {Measure} measure @param {Role} role */
  describe(measure, role) {
    const value = formatPercent(role.value);
    const unit = role.maximum === undefined ? "" : " of attention";
    const maximum =
      role.maximum === undefined ? "" : ` (the largest weight of ${formatPercent(role.maximum)} of the queries)`;
    return `${measure.label}: ${value}${unit}${maximum}. Baseline: ${formatPercent(role.baseline)}, ${role.strategy}.`;
  }
}
