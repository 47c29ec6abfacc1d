// The page: reads the address, asks for JSON, and shows it. Text from the data set is only ever set as text.
const FILTERS = ["dataset", "split", "has_caption", "by", "min_seconds", "max_seconds"];
const FOUND_BY = { video: "the video", text: "the text of a caption", both: "the video and the text of a caption" };
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const CLIP_SECONDS = 10;  // cut in a few seconds; the next one follows by itself
const FAR_SECONDS = 2;  // a thumbnail that is farther off is named as such
const NUM_FRAMES = 8;  // of a time line
const LOADING_AT_ONCE = 2;  // pictures, so that searches and videos find a free connection
let request = new AbortController();
let suggestions = {};  // {data set: texts}

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
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("the server cannot be reached; if it has ended, start vlalign-serve again and open the address that it prints");
  });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  const detail = content.detail;
  throw new Error(typeof detail === "string" ? detail : detail?.[0]?.msg ?? `the server answered ${answer.status}`);
}

// Pictures load a few at a time, urgent ones first; those of results that are gone are dropped. A picture is asked for
// twice, for its headers and by the image that shows it; the second answer comes from the browser's cache.
const waiting = [];
let numLoading = 0;

function loadPicture(address, signal, urgent = false) {
  return new Promise((resolve, reject) => {
    waiting[urgent ? "unshift" : "push"]({ address, signal, resolve, reject });
    loadNext();
  });
}

async function loadNext() {
  if (numLoading >= LOADING_AT_ONCE || waiting.length === 0) return;
  const { address, signal, resolve, reject } = waiting.shift();
  if (signal.aborted) { reject(signal.reason); loadNext(); return; }
  numLoading += 1;
  try {
    const answer = await fetch(address, { signal });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    await answer.blob();
    resolve({ address, isFrame: answer.headers.get("Picture-Source") === "frame", seconds: Number(answer.headers.get("Picture-Seconds")) });
  } catch (error) { reject(error); }
  numLoading -= 1;
  loadNext();
}

// Names a thumbnail that stands for a second at which it was not taken.
function remarkOn(picture, seconds) {
  const off = Math.abs(picture.seconds - seconds);
  return picture.isFrame || off <= FAR_SECONDS ? "" : `thumbnail of ${clock(picture.seconds)}, ${off.toFixed(1)} s off`;
}

function whenSeen(element, signal, then) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    if (!signal.aborted) then();
  }, { rootMargin: "200px" });
  observer.observe(element);
}

// Small frames along the time of a video. The pointer or the arrow keys choose a second, whose frame is shown above it;
// a click or Enter plays from there.
function timeline(moment, pictureAt, seek, signal) {
  const length = moment.duration_seconds, step = length > 60 ? 1 : 0.25;
  const line = make("div", { className: "timeline", tabIndex: 0 });
  const frames = make("div", { className: "frames" });
  const chosen = make("figure", { className: "chosen", hidden: true }, make("img", { alt: "" }), make("figcaption"));
  line.append(frames, chosen);
  for (const [name, value] of Object.entries({
    role: "slider", "aria-label": `Frames of ${moment.video_id}; arrow keys choose a second, Enter plays from there`,
    "aria-valuemin": "0", "aria-valuemax": length.toFixed(1),
  })) line.setAttribute(name, value);
  let second = moment.best_seconds, shown = null, timer = 0;
  const describe = () => { line.setAttribute("aria-valuenow", second.toFixed(2)); line.setAttribute("aria-valuetext", clock(second)); };
  describe();
  const place = () => {
    const [width, half] = [line.clientWidth, chosen.offsetWidth / 2];
    chosen.style.left = `${Math.min(Math.max(second / length * width, half), Math.max(width - half, half))}px`;
  };
  const choose = (wanted) => {
    second = Math.min(Math.max(Math.round(wanted / step) * step, 0), length);
    describe();
    chosen.hidden = false;
    const [image, words] = chosen.children;
    words.textContent = clock(second);
    place();
    clearTimeout(timer);
    timer = setTimeout(() => {
      const asked = second;
      if (shown === asked) return;
      loadPicture(pictureAt(asked), signal, true).then((picture) => {
        if (asked !== second) return;
        [shown, image.src] = [asked, picture.address];
        const remark = remarkOn(picture, asked);
        words.textContent = remark ? `${clock(asked)} (${remark})` : clock(asked);
        place();
      }).catch(() => {});  // the second alone is shown
    }, 120);
  };
  const hide = () => { clearTimeout(timer); chosen.hidden = true; };
  const secondAt = (event) => {
    const box = line.getBoundingClientRect();
    return (event.clientX - box.left) / box.width * length;
  };
  line.addEventListener("pointermove", (event) => choose(secondAt(event)));
  line.addEventListener("pointerleave", hide);
  line.addEventListener("blur", hide);
  line.addEventListener("click", (event) => { choose(secondAt(event)); seek(second); });
  line.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -step, ArrowRight: step, ArrowDown: -step, ArrowUp: step, PageDown: -10 * step, PageUp: 10 * step, Home: -Infinity, End: Infinity };
    if (event.key in moves) { event.preventDefault(); choose(second + moves[event.key]); }
    else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); seek(second); }
    else if (event.key === "Escape") hide();
  });
  const images = Array.from({ length: NUM_FRAMES }, () => make("img", { alt: "" }));
  frames.append(...images);
  whenSeen(line, signal, () => images.forEach((image, index) => {
    loadPicture(pictureAt((index + 0.5) / NUM_FRAMES * length), signal).then((picture) => { image.src = picture.address; }).catch(() => {});
  }));
  return line;
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
  svg.moveTo(moment.best_seconds);
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    seek((event.clientX - box.left) / box.width * moment.duration_seconds);
  });
  return svg;
}

// Shows a video by its file, or by clips where browsers do not play the file, or by its picture where there is neither.
// Times outside are those of the video; a clip's own time begins at 0.
function preview(moment, dataset, signal) {
  const source = (kind, parameters) => `/media/${kind}?${new URLSearchParams({ ...dataset, video_id: moment.video_id, ...parameters })}`;
  const pictureAt = (seconds) => source("picture", { seconds: seconds.toFixed(3) });
  const best = pictureAt(moment.best_seconds), remark = make("p", { className: "quiet" });
  const still = () => make("img", { className: "view", alt: `Picture of ${moment.video_id} at ${clock(moment.best_seconds)}` });
  const showBest = (view, name) => whenSeen(view, signal, () => {
    loadPicture(best, signal, true).then((picture) => {
      view[name] = picture.address;
      remark.textContent = remarkOn(picture, moment.best_seconds);
    }).catch(() => {});  // there is no picture
  });
  if (moment.shown === "thumbnails") {
    const image = still();
    showBest(image, "src");
    return { view: image, seek() {}, watch() {}, pictureAt, remark };
  }
  const video = make("video", {
    className: "view", controls: true, muted: true, playsInline: true, preload: "none",
  });
  showBest(video, "poster");
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
    if (clips) {
      const image = still();
      video.replaceWith(image);
      showBest(image, "src");
      failed();
    }
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
    view: video, seek, pictureAt, remark,
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
  const { view, seek, watch, pictureAt, remark } = preview(moment, dataset, signal);
  let shown = strip(moment, moment.curve, seek);
  const item = make("li", {}, view, shown, timeline(moment, pictureAt, seek, signal));
  const queryWords = make("div", { className: "buttons query-words" });
  const light = (seconds) => { for (const button of queryWords.children) button.lightAt(seconds); };
  const part = `${clock(moment.start_seconds)} to ${clock(moment.end_seconds)}`;
  const words = make("div", { className: "words" }, make("h2", { textContent: `${rank}. ${moment.video_id}` }),
    make("p", { textContent: [part, ...match(moment)].join(", "), title: details(moment) }), remark);
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
      light(moment.best_seconds);
    }).catch(() => {});  // the moment is shown without them
    ask("/api/score_curve", { ...dataset, q: query, video_id: moment.video_id }, signal).then((curve) => {
      const whole = strip(moment, curve, seek);
      shown.replaceWith(whole);
      shown = whole;
    }).catch(() => {});  // the part of the strip that came with the result stays
  }
  return item;
}

// Before the first query: captions of the data set as examples of what can be asked.
function suggest(status) {
  const texts = suggestions[byId("dataset").value] ?? [];
  status.textContent = texts.length ? "Type what you look for, such as" : "Type what you look for.";
  byId("warnings").append(...texts.map((text) => {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => go({ q: text }));
    return make("li", {}, button);
  }));
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
  const isKnown = !asked.has("dataset") || byId("dataset").selectedIndex >= 0;
  if (byId("dataset").selectedIndex < 0) byId("dataset").selectedIndex = 0;
  byId("name").textContent = byId("dataset").value;
  if (FILTERS.some((name) => asked.get(name))) byId("filters").open = true;
  const dataset = asked.has("dataset") ? { dataset: asked.get("dataset") } : {};
  byId("results").replaceChildren();
  byId("warnings").replaceChildren();
  const status = byId("status");
  document.title = query ? `${query} - vlalign search` : "vlalign search";
  if (!isKnown && byId("dataset").length > 0) {
    status.textContent = `No answer: this page has no data set ${asked.get("dataset")}; choose one in the filters.`;
    return;
  }
  if (!query && !asked.get("like")) { suggest(status); return; }
  status.textContent = "Searching ...";
  try {
    const found = query ? await ask("/api/search", { q: query, ...filters() }, signal)
      : await ask("/api/like", { video_id: asked.get("like"), start: asked.get("start") ?? 0, end: asked.get("end") ?? 0, ...filters() }, signal);
    const what = query ? `for “${query}”` : `like ${asked.get("like")}`;
    status.textContent = `${numberOf(found.moments.length, "moment")} ${what} among ${numberOf(found.num_videos, "video")}`;
    byId("warnings").append(...found.warnings.map((warning) => make("li", { textContent: warning })));
    const shown = () => byId("results").append(...found.moments.map((moment, index) => result(moment, index + 1, query, dataset, signal)));
    if (!found.nothing_fits) { shown(); return; }
    status.textContent = `Nothing fits “${query}” among ${numberOf(found.num_videos, "video")}: ${found.nothing_fits}.`;
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
  suggestions = Object.fromEntries(about.datasets.map(({ name, suggestions: texts }) => [name, texts]));
  byId("split").append(...[...new Set(about.datasets.flatMap(({ splits }) => splits))].map((split) => new Option(split, split)));
  const sizes = about.datasets.map((dataset) => `${dataset.name}: ${dataset.num_videos.toLocaleString("en")} videos, ${dataset.num_windows.toLocaleString("en")} search windows`);
  byId("about").textContent = `${sizes.join("; ")}; by ${about.model}.`
    + (about.note ? ` ${about.note}` : "");
} catch (error) {
  byId("about").textContent = error.message;
}
show(byId("q").value);  // what was typed in the meantime stays
