// Parts of an answer that a library draws. It is loaded with the first of them, and what it has drawn
// is kept, since a growing answer is drawn again and again.

export class Drawing {
  // load: imports the library. make: draws a text by the library and an option; returns an element
  // whose children take the text's place, or null if it is to stay. most: elements that are kept.
  constructor(load, make, most) {
    this.load = load;
    this.make = make;
    this.most = most;
    this.kept = new Map();
    this.library = null;
    this.loading = null;
  }

  // Draws a text in place of what a place holds: now, or once the library is there.
  draw(place, text, option) {
    if (this.library) return this.put(place, text, option);
    this.loading ??= this.load().then((library) => (this.library = library));
    return this.loading.then(() => this.put(place, text, option), () => {});
  }

  put(place, text, option) {
    const key = `${option} ${text}`;
    if (!this.kept.has(key)) {
      if (this.kept.size >= this.most) this.kept.clear();
      this.kept.set(key, this.make(this.library, text, option));
    }
    const made = this.kept.get(key);
    if (!made) return;
    place.replaceChildren(...made.cloneNode(true).childNodes);
    place.classList.add("drawn");
  }
}
