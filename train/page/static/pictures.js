// Frames and thumbnails of videos. They load a few at a time, urgent ones first; those of results that are gone are
// dropped. A picture is asked for twice, for its headers and by the image that shows it; the second answer, if it is a
// frame, comes from the browser's cache.
import { clock } from "./common.js";

const FAR_SECONDS = 2;  // a thumbnail that is farther off is named as such
const LOADING_AT_ONCE = 2;  // so that searches and videos find a free connection
const waiting = [];
let numLoading = 0;

export function loadPicture(address, signal, urgent = false) {
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

export function sourceOf(kind, dataset, videoId, parameters = {}) {
  return `/media/${kind}?${new URLSearchParams({ ...dataset, video_id: videoId, ...parameters })}`;
}

export function pictureAt(dataset, videoId, seconds) {
  return sourceOf("picture", dataset, videoId, { seconds: seconds.toFixed(3) });
}

// Names a thumbnail that stands for a second at which it was not taken.
export function remarkOn(picture, seconds) {
  const off = Math.abs(picture.seconds - seconds);
  return picture.isFrame || off <= FAR_SECONDS ? "" : `thumbnail of ${clock(picture.seconds, 1)}, ${off.toFixed(1)} s off`;
}
