// The page: reads the address, asks for JSON, and shows it.
import { addExample, asked, datasetOf, isEmpty, listen, showAsked, showChoices, withOther } from "./asking.js";
import { card } from "./cards.js";
import { Unreachable, ask, byId, make, numberOf } from "./common.js";
import { listen as listenToExports, showMenu } from "./exports.js";
import { followSync, serverIsBack } from "./live.js";
import { closeViewer, openViewer } from "./viewer.js";

const NUM_RESULTS = 48;  // of a block
const MAX_SKIPPED = 100000;  // as the server allows
const FAR_PX = 4000;  // blocks beyond are emptied, so that 100,000 results scroll
const LINK = /^(.+)@(\d+(?:\.\d+)?)$/s;
const MAX_SHOWN = 100;  // characters of a query in a sentence
const CANCEL_MS = 400;  // of a search, before it can be cancelled
const results = byId("results"), status = byId("status"), notes = byId("notes"), next = byId("next"), viewer = byId("viewer"), cancel = byId("cancel");
let request = new AbortController();
let about = { datasets: [] };
let moments = [];  // all that were loaded, the best first
let linked = null;  // the moment of a link that was not among them
let isCounted = false;  // whether the status says how many there are
let hasMore = false;
let loading = null;  // the block that is being asked for
let shownAddress = "";  // of the results
let isSearching = false;

function videosOf(parameters, found) {
  const of = about.datasets.length > 1 ? ` of ${parameters.get("dataset") ?? about.datasets[0].name}` : "";
  return numberOf(found.num_videos, "video") + of;
}

function say(parameters, found) {
  const query = parameters.get("q"), what = `${found.has_more ? "More than " : ""}${numberOf(moments.length, parameters.get("group") === "video" ? "video" : "moment")}`;
  const example = parameters.has("like") ? `${query ? "and " : ""}like ${parameters.getAll("like").length === 1 ? "the example" : "the examples"}` : "";
  const without = parameters.has("without") ? `, without “${parameters.get("without")}”` : "";
  status.textContent = `${moments.length ? what : "Nothing"} ${[...(query ? [`for “${shortened(query)}”`] : []), example].filter(Boolean).join(" ")}${without} among ${videosOf(parameters, found)}`;
}

function shortened(text) {
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)} …` : text;
}

// Whether no video of the data set was read yet; then the answer's warning says how far it is.
function isUnread(found) {
  return found.num_videos === 0 && about.datasets.every((dataset) => dataset.num_videos === 0);
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function note(text) {
  notes.append(make("li", { textContent: text }));
}

// The address of a result: that of the results, with its second.
function addressOf(moment) {
  const parameters = asked();
  parameters.set("open", `${moment.video_id}@${moment.best_seconds.toFixed(3)}`);
  return `/?${parameters}`;
}

function isOpen(moment) {
  return new URLSearchParams(location.search).get("open") === `${moment.video_id}@${moment.best_seconds.toFixed(3)}`;
}

// A block of results. Far from what is seen it is empty, and as high as it was.
function showBlock(first, found, context) {
  const list = make("ol", { className: "grid", start: first + 1, attributes: { role: "list" } });
  let isShown = false;
  const fill = () => {
    if (isShown) return;
    isShown = true;
    list.style.height = "";
    list.append(...found.map((moment) => card(moment, { ...context, address: addressOf(moment), open: () => open(moment) })));
  };
  const observer = new IntersectionObserver((entries) => {
    if (entries.at(-1).isIntersecting) { fill(); return; }
    if (!isShown || list.contains(document.activeElement)) return;
    list.style.height = `${list.getBoundingClientRect().height}px`;
    list.replaceChildren();
    isShown = false;
  }, { rootMargin: `${FAR_PX}px` });
  fill();
  results.append(list);
  observer.observe(list);
}

function opened() {
  return [...moments.flatMap((moment) => [moment, ...(moment.similar ?? [])]), ...(linked ? [linked] : [])].find(isOpen);
}

// Opens what a link says. Of what is not among the first results, the video is shown at that second.
async function followLink(parameters, signal) {
  const link = new URLSearchParams(location.search).get("open");
  if (!link) return;
  const [, videoId, seconds] = LINK.exec(link) ?? [null, link, "0"];
  if (!opened()) {
    const { videos: [video] } = await ask("/api/videos", { ...datasetOf(parameters), video_id: videoId }, { signal });
    if (!video) {
      note(`The video of this link, ${videoId}, is not in this data set.`);
      history.replaceState(null, "", `/?${asked()}`);
      return;
    }
    linked = { ...asMoment(video), best_seconds: Math.min(Number(seconds), video.duration_seconds) };
    history.replaceState(history.state, "", addressOf(linked));
  }
  showViewer(opened());
}

function open(moment) {
  if (viewer.open) history.replaceState(history.state, "", addressOf(moment));
  else history.pushState({ opened: true }, "", addressOf(moment));
  showViewer(moment);
}

function showViewer(moment) {
  const parameters = asked(), index = moments.indexOf(moment);
  openViewer(moment, {
    query: parameters.get("q"), dataset: datasetOf(parameters),
    position: index < 0 ? null : { isFirst: index === 0, isLast: index === moments.length - 1 && !hasMore, text: `${(index + 1).toLocaleString("en")} of ${moments.length.toLocaleString("en")}${hasMore ? "+" : ""}` },
    actions: {
      close: leave,
      like: (example) => go(withOther({ q: [], like: [example], without: [], by: [] })),
      addExample,
      show: (other) => open(other),
      step: (by) => step(moment, by),
    },
  });
}

async function step(moment, by) {
  const index = moments.indexOf(moment) + by;
  if (index === moments.length && hasMore) await more().catch(() => {});  // the button below the results says why
  if (!moments[index] || !isOpen(moment)) return;
  history.replaceState(history.state, "", addressOf(moments[index]));
  showViewer(moments[index]);
}

// Closes the viewer; back leads to the results.
function leave() {
  if (!new URLSearchParams(location.search).has("open")) return;
  if (history.state?.opened) { history.back(); return; }
  history.replaceState(null, "", `/?${asked()}`);
  closeViewer();
}

function go(parameters) {
  const address = `/?${parameters}`;
  if (address === shownAddress && isSearching) return;  // as after Enter in a filter, which has changed and is submitted
  if (address === shownAddress && !viewer.open) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  show();
}

// A video of the list, as a moment.
function asMoment(video) {
  const { duration_seconds: length, middle_seconds: middle, caption } = video;
  return { ...video, start_seconds: 0, end_seconds: length, best_seconds: middle, captions: caption === null ? [] : [caption] };
}

async function askForBlock(parameters, signal) {
  const page = { num_results: NUM_RESULTS, offset: moments.length };
  if (!isEmpty(parameters)) return ask("/api/search", new URLSearchParams([...parameters, ...Object.entries(page)]), { signal });
  const { videos, num_videos: numVideos, warnings = [] } = await ask("/api/videos", new URLSearchParams([...parameters, ...Object.entries(page)]), { signal });
  const found = videos.map(asMoment);
  return { moments: found, num_videos: numVideos, warnings, nothing_fits: null, has_more: moments.length + found.length < numVideos };
}

// Removes the results, which stay, dimmed, while others are searched.
function clear() {
  results.replaceChildren();
  [results.hidden, results.inert] = [false, false];
}

// Asks for the next block and shows it.
function more() {
  if (loading) return loading;
  const asking = (async () => {
    const parameters = asked(), { signal } = request, first = moments.length;
    next.disabled = true;
    next.textContent = "Searching …";
    try {
      const found = await askForBlock(parameters, signal);
      for (const moment of found.moments.flatMap((one) => [one, ...(one.similar ?? [])])) delete moment.curve;  // 100,000 results stay in memory
      if (!first) clear();
      moments.push(...found.moments);
      hasMore = found.has_more && moments.length < MAX_SKIPPED;
      showMenu(!isEmpty(parameters) && moments.length > 0 && !found.nothing_fits);
      if (found.moments.length) showBlock(first, found.moments, { dataset: datasetOf(parameters), signal });
      if (found.has_more && !hasMore) note(`Only the first ${numberOf(moments.length, "result")} are shown; narrow the search to see others.`);
      next.textContent = "Show more";
      if (isCounted) {
        status.setAttribute("aria-live", "off");  // a number that grows while one scrolls is not read out
        say(parameters, found);
      }
      return found;
    } catch (error) {
      if (first && error.name !== "AbortError") next.textContent = `No answer (${error.message}). Try again`;
      throw error;
    } finally {
      if (!signal.aborted) {
        [next.disabled, next.hidden, loading] = [false, !hasMore, null];
        byId("end").hidden = hasMore || moments.length === 0 || results.hidden;
        byId("end").textContent = `That is all: ${numberOf(moments.length, "result")}.`;
        atEnd.unobserve(next);  // looks again whether the end is still seen
        atEnd.observe(next);
      }
    }
  })();
  loading = asking;
  return asking;
}

// Before the first query: captions of the data set as examples of what can be asked, and the videos.
function suggest(parameters) {
  if (parameters.has("without")) note("“Without” needs a text or an example.");
  const name = parameters.get("dataset"), dataset = about.datasets.find((one) => one.name === name) ?? about.datasets[0];
  const texts = dataset?.suggestions ?? [];
  status.textContent = texts.length ? "Type what you are looking for, such as" : "Type what you are looking for.";
  notes.append(...texts.map((text) => {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => go(withOther({ q: [text] })));
    return make("li", { className: "suggestion" }, button);
  }));
}

function showNothing(found) {
  const parameters = asked();
  if (found.num_videos === 0) {
    status.textContent = "No video passes the filters.";
    const all = make("button", { type: "button", textContent: "Remove all filters" });
    all.addEventListener("click", () => go(new URLSearchParams([...parameters].filter(([name]) => ["q", "like", "dataset"].includes(name)))));
    notes.append(make("li", {}, all));
    return;
  }
  status.textContent = `Nothing fits “${shortened(parameters.get("q"))}” among ${videosOf(parameters, found)}: ${found.nothing_fits}.`;
  if (!found.moments.length) return;
  next.hidden = true;
  byId("end").hidden = true;
  results.hidden = true;
  const nearest = make("button", { type: "button", textContent: "Show the nearest moments" });
  nearest.addEventListener("click", () => {
    nearest.parentElement.remove();
    results.hidden = false;
    next.hidden = !hasMore;
    showMenu(true);
  });
  notes.append(make("li", {}, nearest));
}

async function show(typed = "") {
  request.abort();
  request = new AbortController();
  const { signal } = request;
  [moments, linked, hasMore, isCounted, loading, next.disabled, results.inert] = [[], null, false, false, null, false, true];
  closeViewer();
  const parameters = asked(), unknown = showAsked(parameters, typed);
  scrollTo(0, 0);
  notes.replaceChildren();
  showMenu(false);
  status.setAttribute("aria-live", "polite");
  next.hidden = true;
  byId("end").hidden = true;
  cancel.hidden = true;
  shownAddress = `/?${parameters}`;
  byId("json").href = isEmpty(parameters) ? "/api/openapi.json" : `/api/search?${parameters}`;
  document.title = parameters.has("q") ? `${parameters.get("q")} - vlalign search` : "vlalign search";
  if (unknown !== null && about.datasets.length) {
    clear();
    status.textContent = `No answer: this page has no data set ${unknown}. It has ${about.datasets.map(({ name }) => name).join(", ")}.`;
    return;
  }
  isSearching = true;
  if (isEmpty(parameters)) suggest(parameters);
  else status.textContent = "Searching …";
  const slow = setTimeout(() => { cancel.hidden = isEmpty(parameters); }, CANCEL_MS);
  try {
    const found = await more();
    if (isEmpty(parameters) && isUnread(found)) status.textContent = found.warnings.map(sentence).join(" ");
    else for (const warning of found.warnings) note(sentence(warning));
    if (isEmpty(parameters) && found.num_videos && [...parameters].length) status.textContent = `${numberOf(found.num_videos, "video")}. ${status.textContent}`;
    if (!isEmpty(parameters)) {
      say(parameters, found);
      if (found.nothing_fits) showNothing(found);
      else isCounted = true;
    }
    await followLink(parameters, signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!moments.length) clear();
    failed(error);
  } finally {
    clearTimeout(slow);
    if (signal === request.signal) [cancel.hidden, isSearching] = [true, false];
  }
}

async function failed(error) {
  status.textContent = `No answer: ${error.message}`;
  if (error instanceof Unreachable && await serverIsBack(request.signal)) start();
}

async function start() {
  byId("fresh").hidden = true;
  try {
    about = await ask("/api/about", {});
    showChoices(about.datasets);
    const sizes = about.datasets.map((dataset) => `${dataset.name}: ${numberOf(dataset.num_videos, "video")}, ${numberOf(dataset.num_windows, "search window")}`);
    byId("about").textContent = `${sizes.join("; ")}; by ${about.model}.${about.note ? ` ${about.note}` : ""}`;
  } catch (error) { byId("about").textContent = error.message; }
  await show(byId("q").value);  // what was typed in the meantime stays
}

listen(go, failed, (text) => { status.textContent = text; });
listenToExports(() => ({ parameters: asked(), count: moments.length }));
cancel.addEventListener("click", () => {
  request.abort();
  clear();
  cancel.hidden = true;
  status.textContent = "The search was cancelled.";
  byId("q").focus();
});
next.addEventListener("click", () => more().catch(() => {}));
const atEnd = new IntersectionObserver((entries) => {
  if (entries.at(-1).isIntersecting && !next.hidden && !next.disabled && next.textContent === "Show more") more().catch(() => {});
}, { rootMargin: "800px" });
viewer.addEventListener("leave", leave);
addEventListener("popstate", () => {
  const moment = opened();
  if (`/?${asked()}` !== shownAddress) show();
  else if (moment) showViewer(moment);
  else closeViewer();
});
addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, video");
  if (event.key === "/" && !isTyping && !viewer.open) { event.preventDefault(); byId("q").focus(); }
  if (event.key === "Escape" && !cancel.hidden) cancel.click();
  if (viewer.open && !isTyping && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    const shown = moments.find(isOpen);
    if (shown) step(shown, event.key === "ArrowLeft" ? -1 : 1);
  }
});
start();

// Other videos are there. Whoever is reading, typing or far down the results is asked first.
function otherVideos(version) {
  if (about.version === undefined || about.version === version) return;
  const isTyping = byId("q").value.trim() !== (asked().get("q") ?? "");
  if (viewer.open || isTyping || scrollY > 0) byId("fresh").hidden = false;
  else start();
}
byId("fresh").addEventListener("click", () => { scrollTo(0, 0); start(); });
followSync(otherVideos);
