/**
 * Creating elements: `h("button", { class: "quiet", onclick: run }, "Run")`, and `s` for SVG.
 *
 * Styles are set through the object model, never through a style attribute, which the content-security policy forbids.
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
  return initialize(document.createElement(tag), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {(Child | Child[])[]} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function s(tag, attributes = {}, ...children) {
  return initialize(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/**
 * Replace the children of an element.
 * @param {Element} element
 * @param {(Child | Child[])[]} children
 */
export function setChildren(element, ...children) {
  element.replaceChildren(...toNodes(children));
}

let lastId = 0;

/**
 * A unique id, to connect labels with their inputs.
 * @param {string} prefix
 */
export function uniqueId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/**
 * The value of one of the page's CSS variables, for what is drawn rather than styled.
 * @param {string} name such as "--ink"
 */
export function cssVariable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * @template {HTMLElement | SVGElement} ElementType
 * @param {ElementType} element
 * @param {Record<string, unknown>} attributes
 * @param {(Child | Child[])[]} children
 * @returns {ElementType}
 */
function initialize(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") {
      for (const [property, setting] of Object.entries(/** @type {Record<string, string>} */ (value))) {
        element.style.setProperty(property, setting);
      }
    } else if (typeof value === "function") {
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...toNodes(children));
  return element;
}

/**
 * @param {(Child | Child[])[]} children
 * @returns {(Node | string)[]}
 */
function toNodes(children) {
  return children
    .flat()
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (typeof child === "number" ? String(child) : /** @type {Node | string} */ (child)));
}
