// Shows a video by its file, or by clips where browsers do not play the file, or by its picture where there is neither.
// Times outside are those of the video; a clip's own time begins at 0.
import { clock, make } from "./common.js";
import { loadPicture, pictureAt, remarkOn, sourceOf } from "./pictures.js";

const CLIP_SECONDS = 10;  // cut in a few seconds; the next one follows by itself

export function player(moment, dataset, signal) {
  const best = pictureAt(dataset, moment.video_id, moment.best_seconds), remark = make("p", { className: "quiet" });
  const still = () => make("img", { className: "view", alt: `Frame of ${moment.video_id} at ${clock(moment.best_seconds, 1)}` });
  const showBest = (view, name) => loadPicture(best, signal, true).then((picture) => {
    view[name] = picture.address;
    remark.textContent = remarkOn(picture, moment.best_seconds);
  }).catch(() => {});  // there is no picture
  if (moment.shown === "thumbnails") {
    const image = still();
    showBest(image, "src");
    return { view: image, seek() {}, watch() {}, remark, plays: false };
  }
  const video = make("video", {
    className: "view", controls: true, muted: true, playsInline: true, preload: "none",
    attributes: { "aria-label": `${moment.video_id}, from ${clock(moment.start_seconds, 1)}` },
  });
  showBest(video, "poster");
  let clips = false, first = 0, wanted = moment.best_seconds, stopsAt = Infinity, moved = () => {}, failed = () => {};
  const useClip = (seconds) => {
    [clips, first] = [true, seconds];
    video.src = sourceOf("clip", dataset, moment.video_id, { start: seconds, end: seconds + CLIP_SECONDS });
  };
  const seek = (seconds, end = Infinity) => {
    [wanted, stopsAt] = [seconds, end];
    if (clips && (seconds < first || seconds >= first + CLIP_SECONDS)) useClip(seconds);
    else if (video.readyState > 0) video.currentTime = seconds - first;
    video.play().catch(() => {});
  };
  const cannotPlay = () => {
    if (!video.isConnected) return;
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
    moved(first + video.currentTime);
    if (video.paused || first + video.currentTime < stopsAt) return;
    video.pause();
    stopsAt = Infinity;
  });
  video.addEventListener("ended", () => {
    const next = first + CLIP_SECONDS;
    if (clips && video.duration > CLIP_SECONDS - 1 && next < moment.duration_seconds - 0.5) seek(next, stopsAt);
  });
  signal.addEventListener("abort", () => { video.pause(); video.removeAttribute("src"); video.load(); });  // ends what is loading
  if (moment.shown === "file") video.src = sourceOf("video", dataset, moment.video_id);
  else useClip(wanted - moment.start_seconds < CLIP_SECONDS - 1 ? moment.start_seconds : wanted);
  return { view: video, seek, watch(onMove, onFailure) { [moved, failed] = [onMove, onFailure]; }, remark, plays: true };
}
