// The list of queries. Its data are in the page; text from the data set is only ever set as text.
const data = JSON.parse(document.getElementById("query-data").textContent);
const AT_ONCE = 20;
const byId = (id) => document.getElementById(id);

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function seconds(clip) {
  return clip.start_seconds === null ? "" : `, ${clip.start_seconds.toFixed(1)}–${clip.end_seconds.toFixed(1)} s`;
}

function player(clip, strip) {
  const part = clip.start_seconds === null ? "" : `#t=${clip.start_seconds},${clip.end_seconds}`;
  const video = make("video", { controls: true, muted: true, autoplay: true, playsInline: true, src: clip.link + part });
  video.setAttribute("aria-label", `Video ${clip.video_id}`);
  video.addEventListener("error", () => {
    video.replaceWith(strip);
    strip.after(make("p", { className: "dim missing", textContent: `cannot be played here: ${decodeURI(clip.link)}` }));
  }, { once: true });
  strip.replaceWith(video);
}

function figure(index, label, right) {
  const clip = data.clips[index];
  const strip = make("div", { className: "strip" });
  for (const image of clip.images) strip.append(make("img", { src: image.src, alt: image.alt }));
  const caption = make("figcaption", {}, `${label}${clip.video_id}${seconds(clip)}`);
  const shown = make("figure", { className: right ? "right" : "" }, strip, caption);
  if (clip.link) {
    const play = make("button", { type: "button", textContent: "Play" });
    play.setAttribute("aria-label", `Play ${clip.video_id}${seconds(clip)}`);
    play.addEventListener("click", () => { play.remove(); player(clip, strip); });
    caption.append(" ", play);
  }
  return shown;
}

function wordMap(map) {
  const grid = make("div", { className: "map" });
  const best = map.words.map(([word, digits]) => {
    const values = [...digits].map((digit) => parseInt(digit, 36));
    return `${word} at ${map.starts[values.indexOf(Math.max(...values))].toFixed(1)} s`;
  });
  grid.setAttribute("role", "img");
  grid.setAttribute("aria-label", `Where each word fits best: ${best.join(", ")}`);
  for (const [word, digits] of map.words) {
    const cells = make("span", { className: "cells" });
    [...digits].forEach((digit, column) => {
      const cell = make("i", { title: `${word}, ${map.starts[column].toFixed(1)} s` });
      cell.style.opacity = parseInt(digit, 36) / 35;
      cells.append(cell);
    });
    grid.append(make("span", { className: "word", textContent: word }), cells);
  }
  const axis = make("span", { className: "cells axis" }, make("span", { textContent: `${map.starts[0].toFixed(1)} s` }),
    make("span", { textContent: `${map.starts.at(-1).toFixed(1)} s` }));
  grid.append(make("span"), axis);
  return make("details", { open: false }, make("summary", { textContent: "Words over the seconds of the right clip" }), grid);
}

function article(query) {
  const stages = data.stages.map((name, index) => `${name.replaceAll("_", " ")} ${query.stages[index]}`).join(", ");
  const ranks = data.stages.length > 1 ? ` (${stages})` : "";
  const title = make("h3", {}, `“${query.text}” `,
    make("span", { className: "dim", textContent: `· right clip at rank ${query.rank}${ranks}` }));
  const results = make("div", { className: "results" });
  if (!query.found.some(([clip]) => clip === query.clip)) results.append(figure(query.clip, "✓ right: ", true));
  query.found.forEach(([clip, score], place) => {
    const right = clip === query.clip;
    results.append(figure(clip, `${place + 1}. ${right ? "✓ right: " : ""}${score.toFixed(2)} `, right));
  });
  const shown = make("article", { className: "query" }, title, results);
  if (query.map) shown.append(wordMap(query.map));
  return shown;
}

const RANKS = {
  all: () => true, wrong: (rank) => rank > 1, five: (rank) => rank > 5, ten: (rank) => rank > 10, right: (rank) => rank === 1,
};
const ORDERS = { worst: (a, b) => b.rank - a.rank, best: (a, b) => a.rank - b.rank, listed: () => 0 };
let chosen = [], shown = 0;

function fits(query) {
  const word = byId("word").value.trim().toLowerCase(), tag = byId("tag").value;
  if (!RANKS[byId("ranks").value](query.rank)) return false;
  if (tag) return query.tags.some(([of, as]) => as === tag && (!word || of === word));
  return !word || query.text.toLowerCase().includes(word);
}

function more() {
  byId("queries").append(...chosen.slice(shown, shown + AT_ONCE).map(article));
  shown = Math.min(shown + AT_ONCE, chosen.length);
  byId("count").textContent = `Showing ${shown.toLocaleString("en")} of ${chosen.length.toLocaleString("en")} queries`;
  byId("more").hidden = shown === chosen.length;
}

function list() {
  chosen = data.queries.filter(fits).sort(ORDERS[byId("order").value]);
  shown = 0;
  byId("queries").replaceChildren();
  more();
}

const tags = new Set(data.queries.flatMap((query) => query.tags.map(([, tag]) => tag)));
byId("tag").append(...[...tags].sort().map((tag) => new Option(tag.toLowerCase(), tag)));
for (const id of ["word", "tag", "ranks", "order"]) byId(id).addEventListener("input", list);
byId("more").addEventListener("click", more);
byId("browse").hidden = false;
list();
