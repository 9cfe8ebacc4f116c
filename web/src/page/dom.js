/**
 * Elements from a few words: `h("button", { class: "quiet", onclick: go }, "Go")`, and `s` for SVG.
 *
 * Styles go through the object model, never through a style attribute, which the content-security policy forbids.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {(Child | Child[])[]} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {(Child | Child[])[]} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/**
 * Put other children into an element.
 * @param {Element} element
 * @param {(Child | Child[])[]} children
 */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/**
 * @template {HTMLElement | SVGElement} Kind
 * @param {Kind} element
 * @param {Record<string, unknown>} attributes
 * @param {(Child | Child[])[]} children
 * @returns {Kind}
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") {
      for (const [property, set] of Object.entries(/** @type {Record<string, string>} */ (value))) {
        element.style.setProperty(property, set);
      }
    } else if (typeof value === "function") {
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/**
 * @param {(Child | Child[])[]} children
 * @returns {(Node | string)[]}
 */
function nodes(children) {
  return children
    .flat()
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (typeof child === "number" ? String(child) : /** @type {Node | string} */ (child)));
}

let last = 0;

/**
 * An id that nothing else has, for labels and what they belong to.
 * @param {string} of
 */
export function unique(of) {
  last += 1;
  return `${of}-${last}`;
}

/**
 * The value of one of the page's CSS variables, for what is drawn rather than styled.
 * @param {string} name such as "--ink"
 */
export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
