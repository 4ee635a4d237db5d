// The pictures of a prompt: dropped, pasted or chosen. They go into the request as data: URLs, and nowhere else.
import { $, el } from "./dom.js";

const TYPES = { "image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WebP", "image/gif": "GIF" };
const SIDE = 72;
let pictures = [];

export const listPictures = () => pictures.map(picture => picture.url);

export function watchPictures(say) {
  const add = async files => say(...(await addFiles([...files])));
  const view = $("playground");
  view.addEventListener("dragover", event => event.dataTransfer.types.includes("Files") && event.preventDefault());
  view.addEventListener("drop", event => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
  view.addEventListener("paste", event => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
  $("picture").onchange = () => add($("picture").files);
}

// Returns what to say, and whether it is an error.
async function addFiles(files) {
  for (const file of files) {
    if (!(file.type in TYPES)) return [`${file.name} is not a picture in ${Object.values(TYPES).join(", ")}`, true];
    try {
      const image = await createImageBitmap(file);
      pictures.push({ url: await readUrl(file), box: makeThumbnail(image, file.name) });
    } catch {
      return [`${file.name} cannot be read`, true];
    }
  }
  $("picture").value = "";
  show();
  return [""];
}

function readUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// A canvas, because the page's content security policy allows no image.
function makeThumbnail(image, name) {
  const canvas = el("canvas"), scale = Math.min(1, SIDE / Math.max(image.width, image.height));
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const box = el("button");
  box.type = "button";
  box.title = `remove ${name} (${image.width} x ${image.height})`;
  box.setAttribute("aria-label", box.title);
  box.onclick = () => {
    pictures = pictures.filter(picture => picture.box !== box);
    show();
  };
  box.append(canvas);
  return box;
}

function show() {
  $("pictures").replaceChildren(...pictures.map(picture => picture.box));
  $("pictures").hidden = !pictures.length;
}
