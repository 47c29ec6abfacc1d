// What the server does meanwhile: the progress of reading folders, and whether it can be reached at all.
import { ask, byId, clock } from "./common.js";

const WORKING_MS = 2000, IDLE_MS = 5000;
const box = byId("sync");

function say(state) {
  const [words, bar] = box.children;
  const isWorking = state.state === "working";
  box.hidden = !isWorking && !state.problems.length;
  const left = state.seconds_left === null ? "" : `, ${clock(state.seconds_left)} left`;
  const problems = state.problems.length ? [`Not everything could be read: ${state.problems.slice(0, 3).join("; ")}${state.problems.length > 3 ? ` and ${state.problems.length - 3} more` : ""}.`] : [];
  const text = [...(isWorking ? [`${state.what}${left}`] : []), ...problems].join(" ");
  if (words.textContent !== text) words.textContent = text;
  bar.hidden = !isWorking;
  if (state.total) [bar.max, bar.value] = [state.total, state.done ?? 0];
  else bar.removeAttribute("value");
}

// Follows the folders of the server, if it has any; calls ``seen`` with the version of its videos.
export async function followSync(seen) {
  for (;;) {
    let wait = IDLE_MS;
    try {
      const state = await ask("/api/sync", {});
      if (!state.following.length) return;
      say(state);
      seen(state.version);
      if (state.state === "working") wait = WORKING_MS;
    } catch (error) {
      box.hidden = false;
      [box.children[0].textContent, box.children[1].hidden] = [`No answer: ${error.message}`, true];
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

// Waits until the server answers again.
export async function serverIsBack(signal) {
  for (;;) {
    await new Promise((done) => setTimeout(done, WORKING_MS));
    if (signal.aborted) return false;
    try {
      await fetch("/api/about", { signal });
      return true;  // also if it wants another token, which the next request says
    } catch { if (signal.aborted) return false; }
  }
}
