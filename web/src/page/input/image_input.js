/**
 * Choosing an image, or dropping one.
 */

import { h, uniqueId } from "../dom.js";

/** Bytes of an image that may be sent. */
const MAX_IMAGE_BYTES = 8 * 2 ** 20;

/** @param {(message: string, kind?: "note" | "error") => void} notify */
export function imageInput(notify) {
  let url = "";
  const input = h("input", { id: uniqueId("image"), type: "file", accept: "image/*" });
  const preview = h("img", { alt: "The chosen image", hidden: true });
  /** @param {File | undefined} file */
  async function read(file) {
    if (file === undefined) return;
    if (file.size > MAX_IMAGE_BYTES)
      return notify("This image is larger than 8 MB. Please choose a smaller one.", "error");
    url = await new Promise((resolve) => {
      const reader = new FileReader();
      reader.addEventListener("load", () => resolve(String(reader.result)));
      reader.readAsDataURL(file);
    });
    preview.src = url;
    preview.hidden = false;
  }
  input.addEventListener("change", () => read(input.files?.[0]));
  const element = h(
    "div",
    { class: "image-input", hidden: true },
    h("label", { for: input.id }, "Choose an image, or drop one here"),
    input,
    preview,
  );
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    void read(event.dataTransfer?.files[0]);
  });
  return { element, url: () => url };
}
