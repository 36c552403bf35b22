"""CoFedMID: several clients hide their members together.

The modules of the method are defenses of their own: which classes each client trains on
(``partition``), which of the samples left out come back (``compensation``), and noise that
cancels in the average (``neutral``). ``whole`` puts them together.

Source: Bai et al., "United We Defend: Collaborative Membership Inference Defenses in Federated
    Learning" (CoFedMID).
"""
