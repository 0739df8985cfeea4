// Small helpers over the page's elements.

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function numberIn(id) {
  const text = byId(id).value.trim();
  return text === "" ? undefined : Number(text);
}

// Lets Enter in a text field send its form; with Shift it begins a new line.
export function sendByEnter(field) {
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      field.form.requestSubmit();
    }
  });
}

export const whole = (value) => Math.round(value).toLocaleString("en-US");

export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

export const seconds = (value) =>
  value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;

export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  for (; size >= 1024 && power < units.length - 1; power += 1) size /= 1024;
  return `${size.toFixed(power && size < 100 ? 1 : 0)} ${units[power]}`;
}

// Terms and values of a <dl>, in their order; only what changed is written, for screen readers.
export function fill(list, rows) {
  if (list.children.length !== 2 * rows.length) {
    list.replaceChildren(...rows.flatMap(() => [element("dt"), element("dd")]));
  }
  rows.forEach(([term, value], index) => {
    const [dt, dd] = [list.children[2 * index], list.children[2 * index + 1]];
    if (dt.textContent !== term) dt.textContent = term;
    if (dd.textContent !== value) dd.textContent = value;
  });
}
