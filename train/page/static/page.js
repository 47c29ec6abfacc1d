// The page: reads the address, asks for JSON, and shows it. Text from the data set is only ever set as text.
const FILTERS = ["dataset", "split", "has_caption", "by", "min_seconds", "max_seconds"];
const FOUND_BY = { video: "the video", text: "the text of a caption", both: "the video and the text of a caption" };
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const CLIP_SECONDS = 10;  // cut in a few seconds; the next one follows by itself
let request = new AbortController();

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function numberOf(count, thing) {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}

function clock(seconds) {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(1).padStart(4, "0")}`;
}

async function ask(path, parameters, signal) {
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  const detail = content.detail;
  throw new Error(typeof detail === "string" ? detail : detail?.[0]?.msg ?? `the server answered ${answer.status}`);
}

function strip(moment, curve, seek) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "strip");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const low = Math.min(...curve.scores), high = Math.max(...curve.scores);
  const best = curve.scores.indexOf(high);
  svg.setAttribute("aria-label", curve.scores.length
    ? `Score over the video: highest from ${clock(curve.start_seconds[best])} to ${clock(curve.end_seconds[best])}` : "No scores");
  const scale = 100 / Math.max(moment.duration_seconds, 0.001);
  curve.scores.forEach((score, index) => {
    const height = high > low ? 1 + 9 * (score - low) / (high - low) : 5;
    const start = curve.start_seconds[index], end = Math.min(curve.start_seconds[index + 1] ?? curve.end_seconds[index], curve.end_seconds[index]);
    const bar = document.createElementNS(SVG, "rect");
    const middle = (start + end) / 2;
    bar.setAttribute("class", middle >= moment.start_seconds && middle <= moment.end_seconds ? "inside" : "bar");
    for (const [name, value] of Object.entries({ x: start * scale, y: 10 - height, width: Math.max((end - start) * scale - 0.1, 0.2), height })) {
      bar.setAttribute(name, value.toFixed(3));
    }
    svg.append(bar);
  });
  const now = document.createElementNS(SVG, "line");
  now.setAttribute("class", "now");
  now.setAttribute("y2", "10");
  svg.append(now);
  svg.moveTo = (seconds) => { for (const x of ["x1", "x2"]) now.setAttribute(x, (seconds * scale).toFixed(3)); };
  svg.moveTo(moment.start_seconds);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    seek((event.clientX - box.left) / box.width * moment.duration_seconds);
  });
  return svg;
}

// Shows a video by its file, or by clips where browsers do not play the file, or by a thumbnail where there is neither.
// Times outside are those of the video; a clip's own time begins at 0.
function preview(moment, dataset) {
  const source = (kind, parameters) => `/media/${kind}?${new URLSearchParams({ ...dataset, video_id: moment.video_id, ...parameters })}`;
  const thumbnail = source("picture", { seconds: moment.start_seconds });
  const still = () => make("img", { className: "view", alt: `Thumbnail of ${moment.video_id}`, src: thumbnail, loading: "lazy" });
  if (moment.shown === "thumbnails") return { view: still(), seek() {}, watch() {} };
  const video = make("video", {
    className: "view", controls: true, muted: true, playsInline: true, preload: "none", poster: thumbnail,
  });
  video.setAttribute("aria-label", `${moment.video_id}, from ${clock(moment.start_seconds)}`);
  let clips = false, first = 0, wanted = moment.start_seconds, stopsAt = Infinity, failed = () => {};
  const useClip = (seconds) => {
    [clips, first] = [true, seconds];
    video.src = source("clip", { start: seconds, end: seconds + CLIP_SECONDS });
  };
  const seek = (seconds, end = Infinity) => {
    [wanted, stopsAt] = [seconds, end];
    if (clips && (seconds < first || seconds >= first + CLIP_SECONDS)) useClip(seconds);
    else if (video.readyState > 0) video.currentTime = seconds - first;
    video.play().catch(() => {});
  };
  const cannotPlay = () => {
    if (clips) { video.replaceWith(still()); failed(); }
    else { useClip(wanted); video.play().catch(() => {}); }
  };
  video.addEventListener("loadedmetadata", () => {
    if (video.videoWidth === 0) cannotPlay();
    else if (wanted > first) video.currentTime = wanted - first;
  });
  video.addEventListener("error", cannotPlay);
  video.addEventListener("timeupdate", () => {
    if (video.paused || first + video.currentTime < stopsAt) return;
    video.pause();
    stopsAt = Infinity;
  });
  video.addEventListener("ended", () => {
    const next = first + CLIP_SECONDS;
    if (clips && video.duration > CLIP_SECONDS - 1 && next < moment.duration_seconds - 0.5) seek(next, stopsAt);
  });
  if (moment.shown === "file") video.src = source("video", {});
  else useClip(wanted);
  return {
    view: video, seek,
    watch(moved, lost) {
      video.addEventListener("timeupdate", () => moved(first + video.currentTime));
      failed = lost;
    },
  };
}

// A word of the query is lit while it fits the second that is shown: above the middle between its best and its median.
function wordButton(word, curve, seek) {
  const sorted = [...curve.scores].sort((a, b) => a - b);
  const high = sorted[sorted.length - 1], limit = (high + sorted[Math.floor((sorted.length - 1) / 2)]) / 2;
  const best = curve.start_seconds[curve.scores.indexOf(high)];
  const button = make("button", { type: "button", className: "word", textContent: word });
  button.setAttribute("aria-label", `${word}: fits best at ${clock(best)}; go there`);
  button.addEventListener("click", () => { seek(best); button.lightAt(best); });
  button.lightAt = (seconds) => {
    const row = curve.start_seconds.findLastIndex((start) => start <= seconds + 0.001);
    button.classList.toggle("lit", row >= 0 && curve.scores[row] >= limit);
  };
  return button;
}

// How good a match is, in words: beside the moments that held-out captions of these videos find.
function match({ percent_of_captions: percent }) {
  if (percent === null) return [];
  return [percent >= 25 ? "good match" : percent >= 5 ? "possible match" : "weak match"];
}

function details(moment) {
  const share = (value, what) => value === null ? [] : [`higher than ${value.toFixed(1)} % of ${what}`];
  return [`score ${moment.score.toFixed(2)}`, ...share(moment.percent_of_captions, "the best scores of held-out captions"),
    ...share(moment.percentile, "all search windows")].join(", ");
}

function result(moment, rank, query, dataset, signal) {
  const { view, seek, watch } = preview(moment, dataset);
  let shown = strip(moment, moment.curve, seek);
  const item = make("li", {}, view, shown);
  const queryWords = make("div", { className: "buttons query-words" });
  const light = (seconds) => { for (const button of queryWords.children) button.lightAt(seconds); };
  const part = `${clock(moment.start_seconds)} to ${clock(moment.end_seconds)}`;
  const words = make("div", { className: "words" }, make("h2", { textContent: `${rank}. ${moment.video_id}` }),
    make("p", { textContent: [part, ...match(moment)].join(", "), title: details(moment) }));
  if (query) words.append(make("p", { className: "quiet", textContent: `found by ${FOUND_BY[moment.found_by]}` }));
  for (const caption of new Set([...(moment.caption === null ? [] : [moment.caption]), ...moment.captions])) words.append(make("p", { className: "quiet", textContent: `“${caption}”` }));
  const buttons = make("div", { className: "buttons" });
  if (moment.shown !== "thumbnails") {
    const play = make("button", { type: "button", textContent: "Play moment" });
    play.setAttribute("aria-label", `Play ${moment.video_id} from ${part}`);
    play.addEventListener("click", () => seek(moment.start_seconds, moment.end_seconds));
    watch((seconds) => { shown.moveTo(seconds); light(seconds); }, () => play.replaceWith("This video cannot be played here."));
    buttons.append(play);
  }
  const like = make("button", { type: "button", textContent: "More like this" });
  like.setAttribute("aria-label", `More like ${moment.video_id}, ${part}`);
  like.addEventListener("click", () => go({ like: moment.video_id, start: moment.start_seconds, end: moment.end_seconds }));
  buttons.append(like);
  words.append(queryWords, buttons);
  item.append(words);
  if (query) {
    ask("/api/word_curves", { ...dataset, q: query, video_id: moment.video_id }, signal).then((fits) => {
      queryWords.append(...fits.map(({ word, curve }) => wordButton(word, curve, seek)));
      light(moment.start_seconds);
    }).catch(() => {});  // the moment is shown without them
    ask("/api/score_curve", { ...dataset, q: query, video_id: moment.video_id }, signal).then((curve) => {
      const whole = strip(moment, curve, seek);
      shown.replaceWith(whole);
      shown = whole;
    }).catch(() => {});  // the part of the strip that came with the result stays
  }
  return item;
}

function filters() {
  return Object.fromEntries(FILTERS.map((name) => [name, byId(name).value])
    .filter(([name, value]) => value !== "" && (name !== "dataset" || byId(name).selectedIndex > 0)));
}

function go(what) {
  history.pushState(null, "", `/?${new URLSearchParams({ ...what, ...filters() })}`);
  show();
}

async function show(typed = "") {
  request.abort();
  request = new AbortController();
  const { signal } = request;
  const asked = new URLSearchParams(location.search);
  const query = (asked.get("q") ?? "").trim();
  byId("q").value = query || typed;
  for (const name of FILTERS) byId(name).value = asked.get(name) ?? "";
  if (byId("dataset").selectedIndex < 0) byId("dataset").selectedIndex = 0;
  byId("name").textContent = byId("dataset").value;
  const dataset = asked.has("dataset") ? { dataset: asked.get("dataset") } : {};
  byId("results").replaceChildren();
  byId("warnings").replaceChildren();
  const status = byId("status");
  document.title = query ? `${query} - vlalign search` : "vlalign search";
  if (!query && !asked.get("like")) { status.textContent = "Type what you look for."; return; }
  status.textContent = "Searching ...";
  try {
    const found = query ? await ask("/api/search", { q: query, ...filters() }, signal)
      : await ask("/api/like", { video_id: asked.get("like"), start: asked.get("start") ?? 0, end: asked.get("end") ?? 0, ...filters() }, signal);
    const what = query ? `for “${query}”` : `like ${asked.get("like")}`;
    status.textContent = `${numberOf(found.moments.length, "moment")} ${what} among ${numberOf(found.num_videos, "video")}`;
    byId("warnings").append(...found.warnings.map((warning) => make("li", { textContent: warning })));
    const shown = () => byId("results").append(...found.moments.map((moment, index) => result(moment, index + 1, query, dataset, signal)));
    if (!found.nothing_fits) { shown(); return; }
    status.textContent = `Nothing fits ${what} among ${numberOf(found.num_videos, "video")}: ${found.nothing_fits}.`;
    if (!found.moments.length) return;
    const nearest = make("button", { type: "button", textContent: "Show the nearest moments" });
    nearest.addEventListener("click", () => { nearest.parentElement.remove(); shown(); });
    byId("warnings").append(make("li", {}, nearest));
  } catch (error) {
    if (error.name !== "AbortError") status.textContent = `No answer: ${error.message}`;
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = byId("q").value.trim();
  const asked = new URLSearchParams(location.search);
  if (query || !asked.get("like")) go(query ? { q: query } : {});
  else go({ like: asked.get("like"), start: asked.get("start") ?? 0, end: asked.get("end") ?? 0 });
});
addEventListener("popstate", () => show());
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select, textarea")) { event.preventDefault(); byId("q").focus(); }
});

try {
  const about = await ask("/api/about", {}, undefined);
  byId("dataset").append(...about.datasets.map(({ name }) => new Option(name, name)));
  byId("datasets").hidden = about.datasets.length < 2;
  byId("split").append(...[...new Set(about.datasets.flatMap(({ splits }) => splits))].map((split) => new Option(split, split)));
  const sizes = about.datasets.map((dataset) => `${dataset.name}: ${dataset.num_videos.toLocaleString("en")} videos, ${dataset.num_windows.toLocaleString("en")} search windows`);
  byId("about").textContent = `${sizes.join("; ")}; by ${about.model}.`
    + (about.note ? ` ${about.note}` : "");
} catch (error) {
  byId("about").textContent = error.message;
}
show(byId("q").value);  // what was typed in the meantime stays
